//! A vhost-user-blk client that needs no virtual machine, for benchmarks and tests.
//!
//! The client acts as a guest: [`Client::connect`] negotiates with the server on a Unix socket and
//! creates rings and buffers in one shared memory; [`Client::into_queues`] returns a [`Queue`] for
//! each thread. [`DriverRing`] is the ring alone, over any memory. `millrace-lab bench --connect
//! vhost-user:SOCKET` and tests call the client. The crate vhost has the protocol's messages.
//!
//! Invariant: two queues share nothing but the connection, which is not used after the set-up, so
//! their threads never access the same data. Specifications: vhost-user of QEMU; virtio 1.2.
#![allow(unsafe_code)]

mod config;
mod error;
mod layout;
mod notify;
mod queue;
mod request;
mod ring;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Duration;

use millrace_exports::virtio::{self, feature};
use rustix::fs::{FallocateFlags, MemfdFlags, memfd_create};
use vhost::vhost_user::message::{
    VhostUserConfigFlags, VhostUserHeaderFlag, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{Frontend, VhostUserFrontend};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo, VringConfigData};
use vm_memory::{FileOffset, MmapRegion};

pub use self::config::DiskConfig;
pub use self::error::ClientError;
pub use self::layout::{
    Descriptors, LayoutError, PAGE_BYTES, RING_SIZE_MAX, RingLayout, RingOptions, Wait, slots_max,
};
pub use self::queue::{Counters, Queue};
pub use self::request::{Kind, Request, Status, range};
pub use self::ring::{DriverRing, RingError};

use self::config::WANTED;
use self::notify::Notify;
use self::queue::SharedConnection;

/// Guest-physical address at which the guest's memory begins. Any address but zero would do.
const GUEST_BASE: u64 = 1 << 30;
const FIRST_ANSWER: Duration = Duration::from_secs(5);

/// Options of a vhost-user client: queues, depth, descriptor layout, waiting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Options {
    /// Number of queues, one for each thread.
    pub queues: u16,
    /// Number of entries of each ring: a power of two up to 1024.
    pub ring: u16,
    /// Maximum number of requests in flight on each queue. Each request has a buffer.
    pub depth: u16,
    /// Size in bytes of the buffer of each request in flight.
    pub data_bytes: u32,
    /// Descriptor layout; `None` selects chained descriptors if they fit the ring.
    pub descriptors: Option<Descriptors>,
    /// Method of waiting for completions.
    pub wait: Wait,
    /// True to use event indices (`VIRTIO_F_EVENT_IDX`) if the server offers them.
    pub event_idx: bool,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            queues: 1,
            ring: 256,
            depth: 32,
            data_bytes: 4096,
            descriptors: None,
            wait: Wait::Poll,
            event_idx: true,
        }
    }
}

/// Client of a vhost-user-blk server, with a connection that is ready for requests.
#[derive(Debug)]
pub struct Client {
    disk: DiskConfig,
    queues: Vec<Queue>,
}

impl Client {
    /// Connects, negotiates, and starts the queues.
    ///
    /// # Errors
    /// Fails if there is no server, if the server lacks a required feature, or if the options
    /// contradict each other.
    pub fn connect(path: &Path, options: Options) -> Result<Client, ClientError> {
        let stream = reach(path)?;
        let copy = stream.try_clone().map_err(|source| system("a copy of the socket", source))?;
        let frontend = Frontend::from_stream(copy, options.queues.into());
        let mut session = Session { path: path.to_owned(), frontend, stream };
        let disk = session.negotiate(&options)?;
        let ring = ring_options(&options, disk.features);
        let bytes = RingLayout::new(&ring)?.end;
        let queues = session.start(&options, ring, bytes)?;
        Ok(Client { disk, queues })
    }

    /// Returns the disk's configuration as reported by the server.
    #[must_use]
    pub fn disk(&self) -> &DiskConfig {
        &self.disk
    }

    /// Returns the queues, each for one thread. The connection ends when the last queue is dropped.
    #[must_use]
    pub fn into_queues(self) -> Vec<Queue> {
        self.queues
    }
}

fn ring_options(options: &Options, features: u64) -> RingOptions {
    let chained = options.depth <= slots_max(options.ring, Descriptors::Chained);
    let descriptors = options.descriptors.unwrap_or(match chained {
        true => Descriptors::Chained,
        false => Descriptors::Indirect,
    });
    RingOptions {
        size: options.ring,
        depth: options.depth,
        data_bytes: options.data_bytes,
        descriptors,
        event_idx: features & feature::EVENT_IDX != 0,
        wait: options.wait,
    }
}

/// Connects, and checks within a time limit that the server answers. The crate `vhost` has no such
/// limit, and a server that is busy with another client never answers.
fn reach(path: &Path) -> Result<UnixStream, ClientError> {
    let stream = UnixStream::connect(path)
        .map_err(|source| ClientError::Connect { path: path.to_owned(), source })?;
    let ask = || {
        stream.set_read_timeout(Some(FIRST_ANSWER))?;
        // VHOST_USER_GET_FEATURES, version 1, without payload; the answer contains a number.
        let request = [1u32, 1, 0].map(u32::to_ne_bytes).concat();
        (&stream).write_all(&request)?;
        let mut answer = [0; 20];
        (&stream).read_exact(&mut answer)?;
        if answer[..4] != request[..4] || answer[8..12] != 8u32.to_ne_bytes() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "another protocol's answer"));
        }
        stream.set_read_timeout(None)
    };
    match ask() {
        Ok(()) => Ok(stream),
        Err(source) => Err(ClientError::Silent { path: path.to_owned(), source }),
    }
}

fn system(what: &'static str, source: io::Error) -> ClientError {
    ClientError::System { what, source }
}

struct Session {
    path: PathBuf,
    frontend: Frontend,
    stream: UnixStream,
}

impl Session {
    fn step<T>(&self, step: &'static str, result: vhost::Result<T>) -> Result<T, ClientError> {
        result.map_err(|source| ClientError::Protocol { path: self.path.clone(), step, source })
    }

    fn missing(&self, feature: &'static str, remedy: &'static str) -> ClientError {
        ClientError::Feature { path: self.path.clone(), feature, remedy }
    }

    fn negotiate(&mut self, options: &Options) -> Result<DiskConfig, ClientError> {
        let offered = self.step("GET_FEATURES", self.frontend.get_features())?;
        if offered & feature::VERSION_1 == 0 {
            return Err(self.missing("VIRTIO_F_VERSION_1", "legacy devices are not supported"));
        }
        if offered & feature::PROTOCOL_FEATURES == 0 {
            let remedy = "without protocol features the client cannot query the size of the disk";
            return Err(self.missing("VHOST_USER_F_PROTOCOL_FEATURES", remedy));
        }
        let result = self.frontend.get_protocol_features();
        let protocol = self.step("GET_PROTOCOL_FEATURES", result)?;
        if !protocol.contains(VhostUserProtocolFeatures::CONFIG) {
            let remedy = "the client cannot query the size of the disk";
            return Err(self.missing("VHOST_USER_PROTOCOL_F_CONFIG", remedy));
        }
        let wanted = VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK;
        let agreed = protocol & wanted;
        let result = self.frontend.set_protocol_features(agreed);
        self.step("SET_PROTOCOL_FEATURES", result)?;
        if agreed.contains(VhostUserProtocolFeatures::REPLY_ACK) {
            self.frontend.set_hdr_flags(VhostUserHeaderFlag::NEED_REPLY);
        }
        self.step("SET_OWNER", self.frontend.set_owner())?;
        let unwanted = if options.event_idx { 0 } else { feature::EVENT_IDX };
        let features = offered & WANTED & !unwanted;
        self.check_queues(options, features, agreed)?;
        let ring = ring_options(options, features);
        if ring.descriptors == Descriptors::Indirect && features & feature::INDIRECT_DESC == 0 {
            let remedy =
                "use a ring with three entries for each request in flight, but at most 1024";
            return Err(self.missing("VIRTIO_RING_F_INDIRECT_DESC", remedy));
        }
        let disk = self.disk_config(features)?;
        if disk.queues < options.queues {
            return Err(self.too_few(options, disk.queues.into()));
        }
        self.step("SET_FEATURES", self.frontend.set_features(features))?;
        Ok(disk)
    }

    fn check_queues(
        &mut self,
        options: &Options,
        features: u64,
        protocol: VhostUserProtocolFeatures,
    ) -> Result<(), ClientError> {
        let several = features & feature::MQ != 0;
        let offered = match several && protocol.contains(VhostUserProtocolFeatures::MQ) {
            true => {
                let result = self.frontend.get_queue_num();
                self.step("GET_QUEUE_NUM", result)?
            }
            false => 1,
        };
        match u64::from(options.queues) > offered {
            true => Err(self.too_few(options, offered)),
            false => Ok(()),
        }
    }

    fn too_few(&self, options: &Options, offered: u64) -> ClientError {
        ClientError::Queues { path: self.path.clone(), asked: options.queues, offered }
    }

    fn disk_config(&mut self, features: u64) -> Result<DiskConfig, ClientError> {
        let mut space = [0; virtio::config::BYTES];
        let flags = VhostUserConfigFlags::empty();
        let result = self.frontend.get_config(0, virtio::config::BYTES as u32, flags, &space);
        let (_, bytes) = self.step("GET_CONFIG", result)?;
        space.copy_from_slice(&bytes);
        Ok(DiskConfig::parse(&space, features))
    }

    fn start(
        self,
        options: &Options,
        ring: RingOptions,
        ring_bytes: usize,
    ) -> Result<Vec<Queue>, ClientError> {
        let total = ring_bytes * usize::from(options.queues);
        let (file, memory) = share(total).map_err(|source| system("shared memory", source))?;
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: GUEST_BASE,
            memory_size: memory.size() as u64,
            userspace_addr: memory.as_ptr().addr() as u64,
            mmap_offset: 0,
            mmap_handle: file.as_raw_fd(),
        };
        self.step("SET_MEM_TABLE", self.frontend.set_mem_table(&[region]))?;
        let mut parts = Vec::new();
        for number in 0..options.queues {
            let offset = usize::from(number) * ring_bytes;
            let start = NonNull::new(memory.as_ptr().wrapping_add(offset));
            let start = start.expect("mapped memory is never at address zero");
            // SAFETY: each queue has its own part of the mapping, as long as its layout.
            // Every queue owns `SharedConnection`, which keeps the mapping alive.
            let ring = unsafe { DriverRing::new(start, GUEST_BASE + offset as u64, ring) }?;
            let notify = Notify::new(&self.stream).map_err(|source| system("eventfds", source))?;
            self.start_queue(number.into(), &ring, &notify, start.as_ptr().addr() as u64)?;
            parts.push((ring, notify, number));
        }
        let Session { path, stream, .. } = self;
        let shared = Arc::new(SharedConnection { path, _memory: memory, _stream: stream });
        let queue = |(ring, notify, number)| Queue::new(&shared, ring, notify, number);
        Ok(parts.into_iter().map(queue).collect())
    }

    fn start_queue(
        &self,
        number: usize,
        ring: &DriverRing,
        notify: &Notify,
        start: u64,
    ) -> Result<(), ClientError> {
        let (size, layout) = (ring.options().size, ring.layout());
        let addresses = VringConfigData {
            queue_max_size: size,
            queue_size: size,
            flags: 0,
            desc_table_addr: start + layout.descriptors as u64,
            used_ring_addr: start + layout.used as u64,
            avail_ring_addr: start + layout.available as u64,
            log_addr: None,
        };
        let mut frontend = self.frontend.clone();
        self.step("SET_VRING_NUM", frontend.set_vring_num(number, size))?;
        self.step("SET_VRING_BASE", frontend.set_vring_base(number, 0))?;
        self.step("SET_VRING_ADDR", frontend.set_vring_addr(number, &addresses))?;
        self.step("SET_VRING_CALL", frontend.set_vring_call(number, &notify.call))?;
        self.step("SET_VRING_KICK", frontend.set_vring_kick(number, &notify.kick))?;
        self.step("SET_VRING_ENABLE", frontend.set_vring_enable(number, true))
    }
}

const HUGE_PAGE_BYTES: usize = 2 << 20;

/// Creates memory that another process can map, and returns its file and its mapping. If enough
/// huge pages are reserved (`vm.nr_hugepages`), the memory has huge pages, as many guests do.
fn share(bytes: usize) -> io::Result<(File, MmapRegion)> {
    let huge = MemfdFlags::HUGETLB | MemfdFlags::HUGE_2MB;
    match share_pages(bytes.next_multiple_of(HUGE_PAGE_BYTES), huge) {
        Ok(shared) => Ok(shared),
        Err(_) => share_pages(bytes, MemfdFlags::empty()),
    }
}

fn share_pages(bytes: usize, pages: MemfdFlags) -> io::Result<(File, MmapRegion)> {
    let file = File::from(memfd_create("millrace-guest", MemfdFlags::CLOEXEC | pages)?);
    file.set_len(bytes as u64)?;
    if pages.contains(MemfdFlags::HUGETLB) {
        // Allocate the huge pages now. Otherwise the first access could raise SIGBUS if no huge
        // pages are left.
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, bytes as u64)?;
    }
    let offset = FileOffset::new(file.try_clone()?, 0);
    let memory = MmapRegion::from_file(offset, bytes).map_err(io::Error::other)?;
    Ok((file, memory))
}
