//! The ring's tables of registered files and buffers (io_uring back end).
//!
//! A registered file saves the kernel a reference count for each operation, and a registered buffer
//! saves it the pinning of pages. Invariant: an index is free or names exactly one registration. If
//! the kernel refuses to clear an index, the index is never used again.

#![allow(unsafe_code)]

use crate::config::Features;
use crate::lent::{AddressRange, LentRegions};
use crate::op::FileRef;
use crate::uring::probe::BUFFER_SLOTS;
use io_uring::Submitter;
use std::io;
use std::os::fd::RawFd;

pub(crate) struct RegisteredTables {
    free_files: Vec<u32>,
    free_buffers: Vec<u16>,
    pub(crate) lent: LentRegions,
    pub(crate) takes_vectors: bool,
}

impl RegisteredTables {
    /// Creates the tables. `file_slots` is 0 if the ring has no table of files.
    pub(crate) fn new(file_slots: u32, features: &Features) -> RegisteredTables {
        let buffer_slots = if features.registered_buffers { BUFFER_SLOTS } else { 0 };
        RegisteredTables {
            free_files: (0..file_slots).rev().collect(),
            free_buffers: (0..buffer_slots).rev().collect(),
            lent: LentRegions::default(),
            takes_vectors: features.registered_vectors,
        }
    }

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

    pub(crate) fn unregister_file(&mut self, ring: &Submitter<'_>, index: u32) {
        if ring.register_files_update(index, &[-1]).is_ok() {
            self.free_files.push(index);
        }
    }

    /// # Safety
    /// As for [`Handle::lend`](crate::Handle::lend).
    pub(crate) unsafe fn lend(
        &mut self,
        ring: &Submitter<'_>,
        region: AddressRange,
        piece_bytes: usize,
    ) {
        let free_buffers = &mut self.free_buffers;
        self.lent.lend(region, piece_bytes, |piece| {
            let full = || io::Error::other("the ring's table of registered memory is full");
            let index = free_buffers.pop().ok_or_else(full)?;
            let list = [libc::iovec { iov_base: piece.start as *mut _, iov_len: piece.len }];
            // SAFETY: the lender keeps the region mapped until its indexes are cleared.
            let done = unsafe { ring.register_buffers_update(u32::from(index), &list, None) };
            done.inspect_err(|_| free_buffers.push(index)).map(|_| index)
        });
    }

    /// # Safety
    /// As for [`Handle::take_back`](crate::Handle::take_back).
    pub(crate) unsafe fn take_back(&mut self, ring: &Submitter<'_>, region: AddressRange) {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        for index in self.lent.take_back(region) {
            // SAFETY: an empty region names no memory. No operation uses `index` (caller's
            // promise).
            let done = unsafe { ring.register_buffers_update(u32::from(index), &[empty], None) };
            if done.is_ok() {
                self.free_buffers.push(index);
            }
        }
    }
}
