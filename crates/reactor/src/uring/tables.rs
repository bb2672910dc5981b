//! The ring's tables of registered files and buffers (io_uring back end).
//!
//! A registered file saves the kernel a reference count for each operation, and a registered buffer
//! saves it the pinning of pages. Invariant: an index is free or names exactly one registration. If
//! the kernel refuses to clear an index, the index is never used again.

#![allow(unsafe_code)]

use crate::config::Features;
use crate::lent::{AddressRange, LentLookup, LentRegions};
use crate::op::FileRef;
use crate::uring::probe::BUFFER_SLOTS;
use io_uring::Submitter;
use std::io;
use std::os::fd::RawFd;

pub(crate) struct Tables {
    free_files: Vec<u32>,
    free_buffers: Vec<u16>,
    pub(crate) lent: LentRegions,
    pub(crate) takes_vectors: bool,
}

impl Tables {
    /// Creates the tables. `file_slots` is 0 if the ring has no table of files.
    pub(crate) fn new(file_slots: u32, features: &Features) -> Tables {
        let buffer_slots = if features.registered_buffers { BUFFER_SLOTS } else { 0 };
        Tables {
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
    /// As for [`Handle::register_buffer`](crate::Handle::register_buffer).
    pub(crate) unsafe fn register_buffer(
        &mut self,
        ring: &Submitter<'_>,
        ptr: *mut u8,
        len: usize,
    ) -> Option<u16> {
        if ptr.is_null() || len == 0 {
            return None;
        }
        let region = AddressRange { start: ptr as usize, len };
        // SAFETY: promised by the caller.
        let index = unsafe { self.put(ring, region) }.ok()?;
        self.lent.insert_registered(region, index);
        Some(index)
    }

    /// Registers a memory region under a free index.
    ///
    /// # Safety
    /// The region must stay mapped until it is unregistered or the ring is gone.
    unsafe fn put(&mut self, ring: &Submitter<'_>, region: AddressRange) -> io::Result<u16> {
        let full = || io::Error::other("the ring's table of registered memory is full");
        let index = self.free_buffers.pop().ok_or_else(full)?;
        let list = [libc::iovec { iov_base: region.start as *mut _, iov_len: region.len }];
        // SAFETY: promised by the caller.
        let done = unsafe { ring.register_buffers_update(u32::from(index), &list, None) };
        match done {
            Ok(_) => Ok(index),
            Err(error) => {
                self.free_buffers.push(index);
                Err(error)
            }
        }
    }

    /// # Safety
    /// No operation that names `index` may be in flight.
    pub(crate) unsafe fn unregister_buffer(&mut self, ring: &Submitter<'_>, index: u16) {
        if self.lent.remove_registered(index) {
            // SAFETY: promised by the caller.
            unsafe { self.clear(ring, index) };
        }
    }

    /// Clears an index of the ring's table, which makes it free.
    ///
    /// # Safety
    /// No operation that names `index` may be in flight.
    unsafe fn clear(&mut self, ring: &Submitter<'_>, index: u16) {
        let empty = libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 };
        // SAFETY: an empty region names no memory. No operation uses `index` (caller's promise).
        let done = unsafe { ring.register_buffers_update(u32::from(index), &[empty], None) };
        if done.is_ok() {
            self.free_buffers.push(index);
        }
    }

    /// # Safety
    /// As for [`Handle::take_back`](crate::Handle::take_back).
    pub(crate) unsafe fn take_back(&mut self, ring: &Submitter<'_>, region: AddressRange) {
        for index in self.lent.take_back(region) {
            // SAFETY: promised by the caller.
            unsafe { self.clear(ring, index) };
        }
    }

    pub(crate) fn register_lent(&mut self, ring: &Submitter<'_>, region: AddressRange) {
        while let Some(piece) = self.lent.unregistered(region) {
            self.register_piece(ring, piece);
        }
    }

    /// Registers a piece of a lent region, and records the outcome.
    fn register_piece(&mut self, ring: &Submitter<'_>, piece: AddressRange) -> Option<u16> {
        // SAFETY: the lender keeps the region mapped until its indexes are cleared.
        let registered = unsafe { self.put(ring, piece) };
        let index = registered.as_ref().ok().copied();
        self.lent.note(piece, registered);
        index
    }

    pub(crate) fn fixed_buffer(
        &mut self,
        ring: &Submitter<'_>,
        start: usize,
        len: usize,
    ) -> Option<u16> {
        match self.lent.find(start, len) {
            LentLookup::Index(index) => Some(index),
            LentLookup::Unregisterable => None,
            LentLookup::Unregistered(piece) => self.register_piece(ring, piece),
        }
    }
}
