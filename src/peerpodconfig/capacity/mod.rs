//! How many VMs each node may run, and how nodes come to say so.
