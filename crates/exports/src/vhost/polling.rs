//! Adaptive polling: how long to look for work before sleeping.
//!
//! Pure arithmetic over times that are given; called by I/O threads and by the simulator. Kernel
//! counterpart: `halt_poll_ns` of KVM.
