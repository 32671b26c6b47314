"""A sweep on a cluster: priced, started, submitted, followed, fetched and ended, by whichever process is there.

``file`` reads a cluster file, ``price`` says what a launch would take, ``stage`` gathers what travels, ``launcher``
turns the file into what Ray's launcher takes and calls it, ``hosts`` reaches the hosts by ssh, ``steps`` goes from state
to state, and ``states`` keeps the states for this user. ``lease.sh`` is what every host ends by, whoever is gone.
"""
