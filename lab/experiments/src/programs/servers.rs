//! `Server`: filebench's file server, web server and web proxy, at block level through the cache.
//!
//! The settings come from the personalities `fileserver.f`, `webserver.f` and `webproxy.f`
//! (filebench, github.com/filebench/filebench, workloads/): operations, number of threads, mean
//! sizes, the gamma distribution of sizes, the percentage of files that exist at first, and the
//! longest append. Three settings differ from filebench: every set has 1 GiB of files, the cache's
//! memory is an eighth of that, and files are picked at random. An append writes whole pages, at
//! most filebench's mean append size. The rate limit in `webproxy.f` is off by default in
//! filebench, and here, too.

use std::sync::Arc;

use millrace_cache::CacheConfig;
use millrace_random::SplitMix64 as Random;

use super::files::FileSet;
use crate::simulation::Host;
use crate::simulation::program::{Access, Program};

/// Size of a server's file set in bytes: the mean file size times the largest number of files.
const SET_BYTES: u64 = 1 << 30;
const CACHE_BYTES: u64 = SET_BYTES / 8;
const LENGTH_NS: u64 = 200_000_000;
/// Maximum length of an append in pages: 16 KiB, in all three filebench personalities.
const APPEND_PAGES: u64 = 4;

/// Personality of filebench.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `fileserver.f`.
    File,
    /// `webserver.f`.
    Web,
    /// `webproxy.f`.
    Proxy,
}

#[derive(Debug, Clone, Copy)]
enum Flow {
    CreateWhole,
    CreateAppend,
    Append,
    Read,
    /// Appends to the log file, which all threads share.
    Log,
    Delete,
    Stat,
}

impl Kind {
    /// All personalities.
    pub const ALL: [Kind; 3] = [Kind::File, Kind::Web, Kind::Proxy];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Kind::File => "file server",
            Kind::Web => "web server",
            Kind::Proxy => "web proxy",
        }
    }

    pub(crate) fn threads(self) -> u32 {
        if self == Kind::File { 50 } else { 100 }
    }

    fn mean_bytes(self) -> u64 {
        if self == Kind::File { 131_072 } else { 16_384 }
    }

    fn there_percent(self) -> u64 {
        if self == Kind::Web { 100 } else { 80 }
    }

    fn flow(self) -> &'static [Flow] {
        use Flow::{Append, CreateAppend, CreateWhole, Delete, Log, Read, Stat};
        match self {
            Kind::File => &[CreateWhole, Append, Read, Delete, Stat],
            Kind::Web => &[Read, Read, Read, Read, Read, Read, Read, Read, Read, Read, Log],
            Kind::Proxy => &[Delete, CreateAppend, Read, Read, Read, Read, Read],
        }
    }
}

#[derive(Debug, Clone)]
pub(super) struct Server {
    kind: Kind,
    seed: u64,
    files: Arc<FileSet>,
}

impl Server {
    pub(super) fn new(kind: Kind, seed: u64) -> Server {
        let (slots, mut random) = (SET_BYTES / kind.mean_bytes(), Random::new(seed));
        let set = FileSet::new(slots, kind.mean_bytes(), (kind.there_percent(), &mut random));
        Server { kind, seed, files: Arc::new(set) }
    }

    fn step<M: Host>(&self, access: &mut Access<'_, M>, (flow, random): (Flow, &mut Random)) {
        let files = &*self.files;
        let name_ns = access.costs().name_ns();
        let change_ns = access.costs().change_ns();
        match flow {
            Flow::Stat => access.works(name_ns),
            Flow::Delete => {
                access.works(change_ns);
                if let Some(file) = files.delete(random) {
                    files.touch(access, file);
                }
            }
            Flow::CreateWhole | Flow::CreateAppend => {
                access.works(change_ns);
                let pages = match flow {
                    Flow::CreateWhole => files.size_pages(random),
                    _ => 1 + random.below(APPEND_PAGES),
                };
                if let Some(file) = files.create() {
                    files.append(access, file, pages);
                }
                access.works(name_ns);
            }
            Flow::Append | Flow::Read => {
                access.works(name_ns);
                match (files.pick(random), flow) {
                    (Some(file), Flow::Read) => files.read(access, file),
                    (Some(file), _) => files.append(access, file, 1 + random.below(APPEND_PAGES)),
                    (None, _) => {}
                }
                access.works(name_ns);
            }
            Flow::Log => self.log(access, 1 + random.below(APPEND_PAGES)),
        }
    }

    /// Appends pages to the web server's log, which is the first file of the set. When the log has
    /// filled its space on the volume, writing continues at the log's start.
    fn log<M: Host>(&self, access: &mut Access<'_, M>, pages: u64) {
        let Some(mut file) = self.files.first() else { return };
        if self.files.span(file, (file.pages, file.pages + pages)).is_none() {
            file.pages = 0;
        }
        self.files.append(access, file, pages);
    }
}

impl Program for Server {
    fn cache(&self) -> Option<CacheConfig> {
        Some(CacheConfig { size_bytes: CACHE_BYTES, ..CacheConfig::default() })
    }

    /// In the warm-up, the server reads about twice the cache's size.
    fn measured(&self) -> (u64, u64) {
        let reads = self.kind.flow().iter().filter(|flow| matches!(flow, Flow::Read)).count();
        let rounds = 2 * CACHE_BYTES / self.kind.mean_bytes() / reads as u64;
        (rounds * self.kind.flow().len() as u64, LENGTH_NS)
    }

    fn run<M: Host>(&self, number: u32, access: &mut Access<'_, M>) {
        let mut random = Random::new(self.seed ^ u64::from(number + 1) << 24);
        while !access.is_over() {
            for flow in self.kind.flow() {
                self.step(access, (*flow, &mut random));
                access.count(1);
            }
        }
    }
}
