//! A vhost-user-blk device: what a frontend says over its socket, and what follows from it.
//!
//! The control thread of an export (control.rs) hands each message here through the crate `vhost`,
//! which parses them. The device keeps what was said of features, memory and rings, makes queues of
//! it, and gives those to I/O threads; it waits for their answers where the protocol does.
//!
//! Invariants: a ring is served from its kick to GET_VRING_BASE, which waits until it is empty;
//! queue `q` is served by thread `q` modulo their number; memory that a message takes away is
//! unmapped when no request lies in it any more. Source: the vhost-user specification of QEMU.

pub(crate) mod control;
mod messages;

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Weak};
use std::time::Duration;

use millrace_machine::{Deadline, Native};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::{Error, Result};

use self::control::FrontendLink;
use super::io_thread::{Common, Order, ThreadState};
use super::memory::{GuestMemory, Region, RegionAddress};
use super::queue::blk::Config;
use super::queue::inflight::{Inflight, WriteCache};
use super::queue::notifiers::Notifiers;
use super::queue::{DeviceFlags, Queue, QueueParts, RingParts};
use super::ring::{Areas, RingFeatures};
use crate::virtio::feature;

/// Largest configuration space that may be asked for.
const CONFIG_MAX: usize = 256;
/// How long the answer to a removal waits for requests in the memory that goes.
const REMOVAL_WAIT: Duration = Duration::from_secs(5);
/// After this long without the end of what is in flight, a line says what is waited for.
const REMINDER_AFTER: Duration = Duration::from_secs(5);

/// One ring as the frontend described it.
#[derive(Default)]
struct Vring {
    size: u16,
    /// Descriptor table, avail ring, used ring, in the frontend's addresses.
    addresses: Option<[u64; 3]>,
    base: u16,
    enabled: bool,
    /// Kick and call until it is served, and error always.
    notifiers: Notifiers,
    /// An I/O thread serves it.
    served: bool,
}

/// The device of one export, while a frontend is connected.
pub(crate) struct Device {
    common: Arc<Common>,
    thread_states: Arc<[Arc<ThreadState>]>,
    /// What guests are told, but for the size, which may have changed.
    config: Config,
    flags: Arc<DeviceFlags>,
    features: u64,
    memory: Arc<GuestMemory>,
    inflight: Option<Inflight>,
    vrings: Vec<Vring>,
    /// To the frontend.
    link: Arc<FrontendLink>,
    /// A session has begun on this connection.
    owned: bool,
    /// The frontend knows how many queues there are.
    asked_queues: bool,
    /// The frontend asked for the configuration space, so it knows the size.
    config_read: bool,
    /// Answers to orders are negotiated.
    answers: bool,
    /// What was refused last left all as it was.
    whole: bool,
}

impl Device {
    pub(crate) fn new(
        common: Arc<Common>,
        thread_states: Arc<[Arc<ThreadState>]>,
        link: Arc<FrontendLink>,
        (config, flags): (Config, DeviceFlags),
    ) -> Device {
        let vrings = (0..config.queues).map(|_| Vring::default()).collect();
        common.unflushed.begin_session();
        Device {
            common,
            thread_states,
            config,
            flags: Arc::new(flags),
            features: 0,
            memory: Arc::default(),
            inflight: None,
            vrings,
            link,
            owned: false,
            asked_queues: false,
            config_read: false,
            answers: false,
            whole: false,
        }
    }

    /// Whether a frontend may go on whose last message failed, if that asked for an answer.
    pub(crate) fn goes_on(&mut self) -> bool {
        std::mem::take(&mut self.whole) && self.answers
    }

    /// Requests and bytes of the device's tenant so far.
    pub(crate) fn totals(&self) -> [u64; 2] {
        self.common.totals_of(self.flags.tenant)
    }

    fn refuse<T>(&self, why: impl AsRef<str>) -> Result<T> {
        self.common.log.say_rarely(format!("refused what the frontend asks: {}", why.as_ref()));
        Err(Error::InvalidParam)
    }

    /// Why a guest cannot go on that uses features which are not offered any more.
    fn lacks(&self, missing: u64) -> String {
        let ranges = missing & (feature::DISCARD | feature::WRITE_ZEROES) != 0;
        let mut causes = Vec::new();
        if ranges && self.config.read_only {
            causes.push("it is read-only now");
        } else if ranges {
            causes.push("its drives cannot do that any more");
        }
        if missing & feature::EVENT_IDX != 0 {
            causes.push("event-idx = false");
        }
        if causes.is_empty() {
            causes.push("another server may have");
        }
        format!(
            "this guest was started when the export offered {}, which it does not offer now: {}; \
             undo that, or restart the guest",
            feature::names(missing),
            causes.join(", ")
        )
    }

    /// What the frontend may have left for, if it has gone before its session began: QEMU does so,
    /// without a word to its back end, if that has fewer queues than its guest.
    pub(crate) fn why_gone(&self) -> Option<String> {
        let count = self.vrings.len();
        (self.asked_queues && !self.owned).then(|| {
            let queues = if count == 1 { "is 1 queue" } else { &format!("are {count} queues") };
            format!(
                "the frontend has gone when it heard that there {queues}: if its guest has more, \
                 give the export as many (queues =) and restart the guest; QEMU does not bring it \
                 back by itself"
            )
        })
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        let count = self.vrings.len();
        match self.vrings.get_mut(index as usize) {
            Some(_) => Ok(&mut self.vrings[index as usize]),
            None => {
                let text = format!(
                    "queue {index}; there are {count} (queues = in the export); give it as many as \
                     the guest was started with, or restart the guest"
                );
                self.refuse(text)
            }
        }
    }

    /// Tells the thread of a queue.
    fn tell(&self, index: u32, order: Order) {
        self.thread_states[index as usize % self.thread_states.len()].orders.put(order);
    }

    /// Waits for an I/O thread; none if the export ends meanwhile.
    fn hear<T>(&self, answer: &Receiver<T>, what: &str) -> Option<T> {
        let mut reminder = Some(Deadline::<Native>::after(REMINDER_AFTER));
        loop {
            let stops = self.common.stop.is_given();
            // Not a wait for each of hundreds of queues whose threads listen no more.
            let wait = if stops { Duration::ZERO } else { Duration::from_millis(100) };
            match answer.recv_timeout(wait) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if stops => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if reminder.as_mut().is_some_and(Deadline::is_over) {
                reminder = None;
                self.common.log.say(format!("{what}: still waiting for answers of a drive"));
            }
            if reminder.is_none() {
                // It may wait for the frontend instead.
                self.thread_states.iter().for_each(|state| state.nudge.give());
            }
        }
    }

    /// Stops serving a ring; its base. None if the export ends meanwhile: nobody may take a guess
    /// for it.
    fn stop(&mut self, index: u32) -> Option<u16> {
        let vring = self.vrings.get_mut(index as usize)?;
        if std::mem::take(&mut vring.served) {
            let (reply, answer) = channel();
            self.tell(index, Order::Stop(index as u16, reply));
            let base = self.hear(&answer, &format!("queue {index} stops"))?;
            self.vrings[index as usize].base = base;
        }
        Some(self.vrings[index as usize].base)
    }

    /// Stops serving all rings, at the same time.
    pub(crate) fn stop_all(&mut self) {
        let mut answers = Vec::new();
        for index in 0..self.vrings.len() {
            if std::mem::take(&mut self.vrings[index].served) {
                let (reply, answer) = channel();
                self.tell(index as u32, Order::Stop(index as u16, reply));
                answers.push((index, answer));
            }
        }
        for (index, answer) in answers {
            let base = self.hear(&answer, &format!("queue {index} stops"));
            self.vrings[index].base = base.unwrap_or(self.vrings[index].base);
        }
    }

    /// Serves a ring as soon as all of it is known.
    fn start(&mut self, index: u32) -> Result<()> {
        let (memory, features) = (Arc::clone(&self.memory), self.features);
        let protocol = features & feature::PROTOCOL_FEATURES != 0;
        let inflight = self.inflight.clone();
        let flags = Arc::clone(&self.flags);
        let vring = self.vring(index)?;
        let (Some(addresses), size) = (vring.addresses, vring.size) else {
            return self.refuse(format!("queue {index} is started without addresses"));
        };
        if size == 0 {
            return self.refuse(format!("queue {index} is started without a size"));
        }
        let Some(areas) = Areas::find(&memory, size, addresses) else {
            let text = format!(
                "queue {index}: its ring is not in the guest's memory; is that shared (share=on)?"
            );
            return self.refuse(text);
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
            let count = again.len();
            let text =
                format!("queue {index}: {count} requests in flight at a crash are resubmitted");
            self.common.log.say(text);
        }
        let vring = &mut self.vrings[index as usize];
        vring.served = true;
        let parts = QueueParts {
            number: index as u16,
            // Without protocol features there is no message that enables.
            enabled: vring.enabled || !protocol,
            ring: RingParts { areas, size, features: ring_features, taken, used },
            notifiers: vring.notifiers.take(),
            memory,
            inflight,
            again,
            flags,
        };
        self.tell(index, Order::Start(Box::new(Queue::new(parts))));
        Ok(())
    }

    /// Goes on in these regions; waits until all rings do, and a while until those that are left
    /// out are unmapped. Where all stay nobody waits for I/O: QEMU lets its guest stand meanwhile.
    fn change_memory(&mut self, regions: Vec<Arc<Region>>) -> Result<()> {
        let memory = match GuestMemory::new(regions) {
            Ok(memory) => Arc::new(memory),
            Err(error) => return self.refuse(error.to_string()),
        };
        let old = std::mem::replace(&mut self.memory, Arc::clone(&memory));
        let stays = |region| memory.regions().iter().any(|other| Arc::ptr_eq(other, region));
        let gone = old.regions().iter().filter(|region| !stays(region));
        let gone: Vec<Weak<Region>> = gone.map(Arc::downgrade).collect();
        drop(old);
        let mut answers = Vec::new();
        for (index, vring) in self.vrings.iter().enumerate().filter(|(_, vring)| vring.served) {
            let areas = vring.addresses.and_then(|at| Areas::find(&memory, vring.size, at));
            let (reply, answer) = channel();
            let order = Order::Memory(index as u16, Arc::clone(&memory), areas, reply);
            self.tell(index as u32, order);
            answers.push(answer);
        }
        for answer in answers {
            let _ = self.hear(&answer, "a change of memory");
        }
        let mut limit = Deadline::<Native>::after(REMOVAL_WAIT);
        let stops = || self.common.stop.is_given();
        let is_mapped = |region: &Weak<Region>| region.strong_count() > 0;
        while gone.iter().any(is_mapped) && !limit.is_over() && !stops() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// A descriptor for notifications, if it is one.
    fn eventfd(&self, file: Option<File>) -> Result<Option<OwnedFd>> {
        let Some(file) = file else { return Ok(None) };
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let is_eventfd = std::fs::read_link(path)
            .is_ok_and(|target| target.as_os_str() == "anon_inode:[eventfd]");
        // So that one that is full does not stop us.
        let flags = rustix::fs::fcntl_getfl(file.as_fd())
            .and_then(|old| rustix::fs::fcntl_setfl(&file, old | rustix::fs::OFlags::NONBLOCK));
        match is_eventfd && flags.is_ok() {
            true => Ok(Some(file.into())),
            false => self.refuse("a descriptor for notifications is no eventfd"),
        }
    }

    /// Puts the write-back switch in force, as far as the driver has negotiated it.
    fn apply_write_back(&self) {
        let switched = self.features & feature::CONFIG_WCE != 0;
        let on = match switched {
            true => self.common.write_back.load(Ordering::SeqCst),
            false => self.features & feature::FLUSH != 0,
        };
        self.flags.write_back.store(on, Ordering::SeqCst);
        if let Some(inflight) = &self.inflight {
            inflight.note_cache(match self.common.write_back.load(Ordering::SeqCst) {
                true => WriteCache::WriteBack,
                false => WriteCache::WriteThrough,
            });
        }
    }

    /// Whether a frontend that asks for the configuration now, for the first time, is a new one,
    /// whose guest has set no switch. QEMU asks where it makes its device; where it comes back it
    /// says the features of its guest first, and asks no more than its guest does.
    fn is_new(&self) -> bool {
        self.features == 0 && self.inflight.is_none() && self.memory.regions().is_empty()
    }

    /// Another session begins on the same connection: nothing of the last one is left, above all
    /// not its memory, which the frontend does not take away. What was negotiated of the protocol,
    /// and the way back to the frontend, were said before the message that this follows.
    ///
    /// QEMU does so where a device is unplugged and another one made on the same character device.
    fn begin_session(&mut self) {
        self.stop_all();
        self.features = 0;
        self.inflight = None;
        self.vrings.iter_mut().for_each(|vring| *vring = Vring::default());
        self.memory = Arc::default();
        self.config_read = false;
        self.common.unflushed.begin_session();
        self.apply_write_back();
    }

    /// The device as it is before a frontend says anything.
    fn reset(&mut self) {
        self.stop_all();
        // A head that broke its ring is marked there, and the guest knows nothing of it any more.
        if let Some(inflight) = &self.inflight {
            inflight.forget();
        }
        self.common.unflushed.begin_session();
        self.features = 0;
        for vring in &mut self.vrings {
            vring.notifiers.forget();
            let notifiers = std::mem::take(&mut vring.notifiers);
            *vring = Vring { notifiers, ..Vring::default() };
        }
    }
}

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
