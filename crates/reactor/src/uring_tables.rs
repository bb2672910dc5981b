//! The ring's tables of registered files and buffers (io_uring back end).
//!
//! Owns the free indexes of the file table and the registered regions. Called by the reactor on
//! behalf of drivers, with the ring's submitter lent. Registration saves the kernel a reference
//! count per operation (files) and the pinning of pages per operation (buffers).
//! Invariant: an index is free or names exactly one registration; if the kernel refuses to clear
//! one, it is never used again.

#![allow(unsafe_code)]

use crate::op::FileRef;
use crate::regions::Regions;
use io_uring::Submitter;
use std::os::fd::RawFd;

/// What is registered with one ring.
pub(crate) struct Tables {
    free_files: Vec<u32>,
    regions: Regions,
}

impl Tables {
    /// Tables as large as the ring's; 0 where it has none.
    pub(crate) fn new(file_slots: u32, buffer_slots: u16) -> Tables {
        Tables { free_files: (0..file_slots).rev().collect(), regions: Regions::new(buffer_slots) }
    }

    /// Puts a file into the table, if there is room.
    pub(crate) fn register_file(&mut self, ring: &Submitter<'_>, fd: RawFd) -> FileRef {
        let Some(index) = self.free_files.pop() else { return FileRef::Raw(fd) };
        match ring.register_files_update(index, &[fd]) {
            Ok(1) => FileRef::Fixed(index),
            _ => {
                self.free_files.push(index);
                FileRef::Raw(fd)
            }
        }
    }

    /// Takes a file out of the table.
    pub(crate) fn unregister_file(&mut self, ring: &Submitter<'_>, index: u32) {
        if ring.register_files_update(index, &[-1]).is_ok() {
            self.free_files.push(index);
        }
    }

    /// Puts a region into the table, if there is room and the kernel agrees.
    ///
    /// # Safety
    ///
    /// The region stays mapped until it is unregistered or the ring is gone.
    pub(crate) unsafe fn register_buffer(
        &mut self,
        ring: &Submitter<'_>,
        ptr: *mut u8,
        len: usize,
    ) -> Option<u16> {
        if ptr.is_null() || len == 0 {
            return None;
        }
        let index = self.regions.reserve()?;
        let region = libc::iovec { iov_base: ptr.cast(), iov_len: len };
        // SAFETY: promised by the caller.
        let done = unsafe { ring.register_buffers_update(u32::from(index), &[region], None) };
        if done.is_err() {
            self.regions.give_back(index);
            return None;
        }
        self.regions.insert(ptr as usize, len, index);
        Some(index)
    }

    /// Takes a region out of the table.
    ///
    /// # Safety
    ///
    /// No operation that names `index` is outstanding.
    pub(crate) unsafe fn unregister_buffer(&mut self, ring: &Submitter<'_>, index: u16) {
        if !self.regions.remove(index) {
            return;
        }
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: an empty region names no memory, and the caller promises that nothing uses the
        // old one.
        let done = unsafe { ring.register_buffers_update(u32::from(index), &[empty], None) };
        if done.is_ok() {
            self.regions.give_back(index);
        }
    }

    /// The registered region that contains the range.
    pub(crate) fn fixed_buffer(&self, start: usize, len: usize) -> Option<u16> {
        self.regions.find(start, len)
    }
}
