//! A vhost-user-blk device: handles the messages of a frontend.
//!
//! The device keeps the negotiated features, memory and rings, creates queues from them, and passes
//! these to the I/O threads. The device waits for answers of the I/O threads where the protocol
//! demands it.
//!
//! Invariants: a ring is served from its kick to GET_VRING_BASE, which waits until the ring is
//! empty. Queue `q` is served by thread `q` modulo the number of threads. Memory that a message
//! removes is unmapped once no request uses it. Source: the vhost-user specification of QEMU.

pub(crate) mod control;
mod messages;

use std::fs::File;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use millrace_machine::{Deadline, Native};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::{Error, Result};

use super::SharedExport;
use super::io_thread::ThreadOrder;
use super::memory::{GuestMemory, Region, RegionAddress};
use super::queue::blk::Config;
use super::queue::inflight::{Inflight, WriteCache};
use super::queue::notifiers::QueueNotifiers;
use super::queue::{DeviceFlags, Queue, QueueParts};
use super::ring::{RingAreas, RingFeatures, RingParts};
use crate::virtio::{ID_BYTES, feature};

const CONFIG_MAX: usize = 256;
/// Maximum time for which the reply to a removal of guest memory is delayed while requests still
/// use the memory.
const REMOVAL_WAIT: Duration = Duration::from_secs(5);
const REMINDER_AFTER: Duration = Duration::from_secs(5);

#[derive(Default)]
struct VringState {
    size: u16,
    /// Descriptor table, avail ring and used ring, as addresses of the frontend.
    addresses: Option<[u64; 3]>,
    base: u16,
    enabled: bool,
    /// Eventfds of the ring. The I/O thread that serves the ring takes the eventfds for kicks and
    /// interrupts.
    notifiers: QueueNotifiers,
    served: bool,
}

pub(crate) struct Device {
    export: Arc<SharedExport>,
    /// Configuration space for guests, possibly with an outdated size.
    config: Config,
    flags: Arc<DeviceFlags>,
    features: u64,
    memory: Arc<GuestMemory>,
    inflight: Option<Inflight>,
    vrings: Vec<VringState>,
    owned: bool,
    asked_queues: bool,
    /// True once the frontend has read the configuration space, so that it knows the size.
    config_read: bool,
    /// True if REPLY_ACK was negotiated.
    answers: bool,
    /// True if the last refused message left the device unchanged.
    whole: bool,
}

impl Device {
    pub(crate) fn new(export: Arc<SharedExport>, config: Config, id: [u8; ID_BYTES]) -> Device {
        let vrings = (0..config.queues).map(|_| VringState::default()).collect();
        let unflushed = Arc::clone(&export.common.unflushed);
        unflushed.begin_session();
        let flags = DeviceFlags {
            write_back: AtomicBool::new(true),
            read_only: config.read_only,
            id,
            tenant: export.tenant,
            group: export.group,
            unflushed,
        };
        Device {
            export,
            config,
            flags: Arc::new(flags),
            features: 0,
            memory: Arc::default(),
            inflight: None,
            vrings,
            owned: false,
            asked_queues: false,
            config_read: false,
            answers: false,
            whole: false,
        }
    }

    /// Returns true if the frontend may continue after a refused message, because the device is
    /// unchanged and a reply reports the error (REPLY_ACK).
    pub(crate) fn goes_on(&mut self) -> bool {
        std::mem::take(&mut self.whole) && self.answers
    }

    pub(crate) fn totals(&self) -> [u64; 2] {
        self.export.totals()
    }

    fn refuse<T>(&self, why: impl AsRef<str>) -> Result<T> {
        self.export
            .common
            .log
            .say_rarely(format!("refused a request of the frontend: {}", why.as_ref()));
        Err(Error::InvalidParam)
    }

    /// Returns a message for the operator: the guest cannot continue, because it uses features that
    /// the device no longer offers.
    fn lacks(&self, missing: u64) -> String {
        let ranges = missing & (feature::DISCARD | feature::WRITE_ZEROES) != 0;
        let mut causes = Vec::new();
        if ranges && self.config.read_only {
            causes.push("it is read-only now");
        } else if ranges {
            causes.push("the export's drives no longer support these requests");
        }
        if missing & feature::EVENT_IDX != 0 {
            causes.push("event-idx = false");
        }
        if causes.is_empty() {
            causes.push("the guest may have been started with another version of the server");
        }
        format!(
            "this guest was started when the export offered {}, which it does not offer now: {}; \
             undo that, or restart the guest",
            feature::names(missing),
            causes.join(", ")
        )
    }

    /// Explains why a frontend may have disconnected before its session began. QEMU disconnects
    /// without an error if the back end has fewer queues than the guest.
    pub(crate) fn why_gone(&self) -> Option<String> {
        let count = self.vrings.len();
        (self.asked_queues && !self.owned).then(|| {
            let queues = if count == 1 { "is 1 queue" } else { &format!("are {count} queues") };
            format!(
                "the frontend disconnected when it was told that there {queues}: if its guest has more, \
                 give the export as many (queues =) and restart the guest; QEMU does not \
                 reconnect it by itself"
            )
        })
    }

    fn vring(&mut self, index: u32) -> Result<&mut VringState> {
        let count = self.vrings.len();
        if index as usize >= count {
            return self.refuse(format!(
                "queue {index}; there are {count} (queues = in the export); give it as many as the \
                 guest was started with, or restart the guest"
            ));
        }
        Ok(&mut self.vrings[index as usize])
    }

    fn tell(&self, index: u32, order: ThreadOrder) {
        let threads = &self.export.thread_states;
        threads[index as usize % threads.len()].orders.put(order);
    }

    fn change(&self, index: u32, change: impl FnOnce(&mut Queue) + Send + 'static) {
        self.tell(index, ThreadOrder::change(index as u16, change));
    }

    /// Waits for an I/O thread's answer. Returns `None` if the export stops meanwhile.
    fn hear<T>(&self, answer: &Receiver<T>, what: &str) -> Option<T> {
        let mut reminder = Some(Deadline::<Native>::after(REMINDER_AFTER));
        loop {
            let stops = self.export.common.stop.is_given();
            // After a stop, I/O threads that have ended never answer. Waiting for an answer about
            // each of hundreds of queues would take too long, so only answers that have already
            // arrived are taken.
            let wait = if stops { Duration::ZERO } else { Duration::from_millis(100) };
            match answer.recv_timeout(wait) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if stops => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if reminder.as_mut().is_some_and(Deadline::is_over) {
                reminder = None;
                self.export
                    .common
                    .log
                    .say(format!("{what}: still waiting for a drive to complete requests"));
            }
            if reminder.is_none() {
                // The I/O thread may be stuck in a write to an eventfd of the frontend. A signal
                // interrupts the write.
                self.export.thread_states.iter().for_each(|state| state.signal.send());
            }
        }
    }

    /// Stops serving these rings, and records the base of each ring (the index of its next
    /// request). Returns false if the export stops meanwhile. Some bases are then unknown.
    fn stop(&mut self, rings: Range<u32>) -> bool {
        let mut answers = Vec::new();
        for index in rings {
            if std::mem::take(&mut self.vrings[index as usize].served) {
                let (reply, answer) = channel();
                self.change(index, move |queue| queue.stopping = Some(reply));
                answers.push((index, answer));
            }
        }
        let mut is_known = true;
        for (index, answer) in answers {
            match self.hear(&answer, &format!("queue {index} is stopping")) {
                Some(base) => self.vrings[index as usize].base = base,
                None => is_known = false,
            }
        }
        is_known
    }

    pub(crate) fn stop_all(&mut self) {
        self.stop(0..self.vrings.len() as u32);
    }

    fn start(&mut self, index: u32) -> Result<()> {
        let (memory, features) = (Arc::clone(&self.memory), self.features);
        let protocol = features & feature::PROTOCOL_FEATURES != 0;
        let inflight = self.inflight.clone();
        let flags = Arc::clone(&self.flags);
        let vring = self.vring(index)?;
        let (Some(addresses), size) = (vring.addresses, vring.size) else {
            return self.refuse(format!("queue {index} was started without ring addresses"));
        };
        if size == 0 {
            return self.refuse(format!("queue {index} was started without a ring size"));
        }
        let Some(areas) = RingAreas::find(&memory, size, addresses) else {
            return self.refuse(format!(
                "queue {index}: its ring is not in the guest's memory; share the memory (share=on)"
            ));
        };
        let ring_features = RingFeatures {
            event_idx: features & feature::EVENT_IDX != 0,
            indirect: features & feature::INDIRECT_DESC != 0,
        };
        let used = areas.used_idx(&memory);
        let mut inflight = inflight.and_then(|all| all.queue(index as u16, size));
        let recovered = inflight.as_mut().map(|own| own.recover(used)).unwrap_or_default();
        let taken = match recovered.known {
            true => used.wrapping_add(recovered.heads.len() as u16),
            false => vring.base,
        };
        let again = recovered.heads;
        if !again.is_empty() {
            self.export.common.log.say(format!(
                "queue {index}: resubmitting {} requests that were in flight when the server ended",
                again.len()
            ));
        }
        let vring = &mut self.vrings[index as usize];
        vring.served = true;
        let parts = QueueParts {
            number: index as u16,
            // Without protocol features there is no message to enable a ring, so the ring starts
            // enabled.
            enabled: vring.enabled || !protocol,
            ring: RingParts { areas, size, features: ring_features, taken, used },
            notifiers: vring.notifiers.take(),
            memory,
            inflight,
            again,
            flags,
        };
        self.tell(index, ThreadOrder::Start(Box::new(Queue::new(parts))));
        Ok(())
    }

    /// Switches to new memory regions, and returns when all rings use them. Also waits, for a
    /// limited time, until removed regions are unmapped. Waits for nothing else, because QEMU
    /// stops its guest while this message is handled.
    fn change_memory(&mut self, regions: MappedRegions) -> Result<()> {
        let memory = regions
            .and_then(|regions| GuestMemory::new(regions).map_err(|error| error.to_string()));
        let memory = match memory {
            Ok(memory) => Arc::new(memory),
            Err(why) => return self.refuse(why),
        };
        let old = std::mem::replace(&mut self.memory, Arc::clone(&memory));
        let stays = |region| memory.regions().iter().any(|other| Arc::ptr_eq(other, region));
        let gone = old.regions().iter().filter(|region| !stays(region));
        let gone: Vec<Weak<Region>> = gone.map(Arc::downgrade).collect();
        drop(old);
        let mut answers = Vec::new();
        for (index, vring) in self.vrings.iter().enumerate().filter(|(_, vring)| vring.served) {
            let areas = vring.addresses.and_then(|at| RingAreas::find(&memory, vring.size, at));
            let ((reply, answer), memory) = (channel(), Arc::clone(&memory));
            self.change(index as u32, move |queue| {
                queue.change_memory(memory, areas);
                // The send fails if the device is gone, and then nobody waits for the reply.
                let _ = reply.send(());
            });
            answers.push(answer);
        }
        for answer in answers {
            let _ = self.hear(&answer, "memory change");
        }
        let mut limit = Deadline::<Native>::after(REMOVAL_WAIT);
        let stops = || self.export.common.stop.is_given();
        let is_mapped = |region: &Weak<Region>| region.strong_count() > 0;
        while gone.iter().any(is_mapped) && !limit.is_over() && !stops() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// Checks that a file is an eventfd, and makes it non-blocking.
    fn eventfd(&self, file: Option<File>) -> Result<Option<OwnedFd>> {
        let Some(file) = file else { return Ok(None) };
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let is_eventfd = std::fs::read_link(path)
            .is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]");
        // The eventfd becomes non-blocking, so that a full counter does not block an I/O thread.
        let flags = rustix::fs::fcntl_getfl(file.as_fd())
            .and_then(|old| rustix::fs::fcntl_setfl(&file, old | rustix::fs::OFlags::NONBLOCK));
        match is_eventfd && flags.is_ok() {
            true => Ok(Some(file.into())),
            false => self.refuse("a notification descriptor is not an eventfd"),
        }
    }

    /// Applies the write-back switch, if the driver has negotiated the feature for it.
    fn apply_write_back(&self) {
        let switched = self.features & feature::CONFIG_WCE != 0;
        let on = match switched {
            true => self.export.common.write_back.load(Ordering::SeqCst),
            false => self.features & feature::FLUSH != 0,
        };
        self.flags.write_back.store(on, Ordering::SeqCst);
        if let Some(inflight) = &self.inflight {
            inflight.note_cache(match self.export.common.write_back.load(Ordering::SeqCst) {
                true => WriteCache::WriteBack,
                false => WriteCache::WriteThrough,
            });
        }
    }

    /// Returns true if the frontend is new. A QEMU that reconnects has set its features before it
    /// reads the configuration; a new QEMU has not.
    fn is_new(&self) -> bool {
        self.features == 0 && self.inflight.is_none() && self.memory.regions().is_empty()
    }

    /// Begins another session on the same connection and drops the state of the last session. The
    /// protocol features and the channel back to the frontend stay.
    ///
    /// QEMU begins another session if a device is unplugged and a new one uses the same character
    /// device.
    fn begin_session(&mut self) {
        self.stop_all();
        self.features = 0;
        self.inflight = None;
        self.vrings.iter_mut().for_each(|vring| *vring = VringState::default());
        self.memory = Arc::default();
        self.config_read = false;
        self.export.common.unflushed.begin_session();
        self.apply_write_back();
    }

    fn reset(&mut self) {
        self.stop_all();
        // The inflight region may still list an invalid request that put its queue out of service.
        // The reset drops that request.
        if let Some(inflight) = &self.inflight {
            inflight.forget();
        }
        self.export.common.unflushed.begin_session();
        self.features = 0;
        for vring in &mut self.vrings {
            vring.notifiers.forget();
            let notifiers = std::mem::take(&mut vring.notifiers);
            *vring = VringState { notifiers, ..VringState::default() };
        }
    }
}

/// Mapped regions, or the reason why a region cannot be mapped.
type MappedRegions = std::result::Result<Vec<Arc<Region>>, String>;

fn map(file: File, region: &VhostUserMemoryRegion) -> std::result::Result<Arc<Region>, String> {
    let address = RegionAddress {
        guest: region.guest_phys_addr,
        len_bytes: region.memory_size,
        user: region.user_addr,
        offset: region.mmap_offset,
    };
    Region::map(file, address).map(Arc::new).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests;
