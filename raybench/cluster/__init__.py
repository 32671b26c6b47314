"""A sweep on a cluster: its file and price, its machines, the steps of a launch, and its states; hosts end by lease.sh."""
