"""A sweep on a cluster: priced, started, submitted, followed, fetched and ended, by whichever process is there.

``file`` reads a cluster file and says what a launch would take, ``machines`` gathers what travels, turns the file into
what Ray's launcher takes, calls it, and reaches the hosts by ssh, ``steps`` goes from state to state, and ``states`` keeps
the states for this user. ``lease.sh`` is what every host ends by, whoever is gone.
"""
