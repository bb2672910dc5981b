//! `CachedRange`: a job's region of a file, which is dropped from the page cache before each pass.
//!
//! fio does the same with `posix_fadvise` when a job opens its file and before each further pass
//! (`invalidate`). Clean pages are dropped; dirty pages stay until they are written. `run` creates
//! the value; the worker calls it.

use std::fs::File;

use rustix::fs::{Advice, fadvise};

use super::source::Span;
use super::spec::JobSpec;

pub(super) struct CachedRange {
    file: File,
    span: Span,
}

impl CachedRange {
    /// Returns the file region that the job drops from the page cache; `None` if it drops nothing.
    pub(super) fn of(job: &JobSpec, clone: u32, span: Span) -> Result<Option<Self>, String> {
        if job.access.direct || !job.access.invalidate {
            return Ok(None);
        }
        let name = job.filename_of(clone);
        match File::open(&name) {
            Ok(file) => Ok(Some(CachedRange { file, span })),
            Err(error) => Err(format!("filename={name}: {error}")),
        }
    }

    /// Advises the page cache to drop the region. The page cache may ignore the advice.
    pub(super) fn forget(&self) {
        let _ =
            fadvise(&self.file, self.span.begin, self.span.size.try_into().ok(), Advice::DontNeed);
    }
}
