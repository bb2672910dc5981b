//! Tests that boot a Ceph cluster or a guest.
//!
//! These tests take longest, and the test program starts tests in the order of their names: under
//! the name of this module they run beside all others instead of after them.

mod rbd_cluster;
mod vhost_guest;
mod vhost_guest_replug;
mod vhost_guest_resize;
mod vhost_guest_restart;
