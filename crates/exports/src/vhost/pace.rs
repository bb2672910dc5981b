//! Workload-aware batch submission: whether to wait for more requests before submitting.
//!
//! Pure arithmetic over times that are given; called by I/O threads and by the simulator. Paper:
//! \[MIOT\] workload-aware batch submission.
