//! A vhost-user-blk device: what a frontend says over its socket, and what follows from it.
//!
//! The control thread of an export (control.rs) hands each message here through the crate `vhost`,
//! which parses them. The device keeps what was said of features, memory and rings, makes queues of
//! it, and gives those to I/O threads; it waits for their answers where the protocol does.
//!
//! Invariants: a ring is served from its kick to GET_VRING_BASE, which waits until it is empty;
//! queue `q` is served by thread `q` modulo their number; memory that a message takes away is
//! unmapped when no request lies in it any more. Source: the vhost-user specification of QEMU.

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use super::blk::{Config, WCE_OFFSET, feature};
use super::inflight::Inflight;
use super::memory::{GuestMemory, REGIONS_MAX, Region, RegionAddress};
use super::queue::{DeviceFlags, Notifiers, Queue, QueueParts, RingParts};
use super::ring::{Areas, RingFeatures, SIZE_MAX};
use super::thread::{Common, Desk, Order};

/// Largest configuration space that may be asked for.
const CONFIG_MAX: usize = 256;
/// How long the answer to a removal waits for requests in the memory that goes.
const REMOVAL_WAIT: Duration = Duration::from_secs(5);
/// After this long without the end of what is in flight, a line says what is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// One ring as the frontend described it.
#[derive(Default)]
struct Vring {
    size: u16,
    /// Descriptor table, avail ring, used ring, in the frontend's addresses.
    addresses: Option<[u64; 3]>,
    base: u16,
    enabled: bool,
    notifiers: Notifiers,
    /// An I/O thread serves it.
    served: bool,
}

/// The device of one export, while a frontend is connected.
pub(crate) struct Device {
    common: Arc<Common>,
    desks: Arc<[Arc<Desk>]>,
    /// What guests are told, but for the size, which may have changed.
    config: Config,
    flags: Arc<DeviceFlags>,
    features: u64,
    protocol: VhostUserProtocolFeatures,
    memory: Arc<GuestMemory>,
    inflight: Option<Inflight>,
    vrings: Vec<Vring>,
}

impl Device {
    pub(crate) fn new(
        common: Arc<Common>,
        desks: Arc<[Arc<Desk>]>,
        config: Config,
        flags: DeviceFlags,
    ) -> Device {
        let vrings = (0..config.queues).map(|_| Vring::default()).collect();
        Device {
            common,
            desks,
            config,
            flags: Arc::new(flags),
            features: 0,
            protocol: VhostUserProtocolFeatures::empty(),
            memory: Arc::default(),
            inflight: None,
            vrings,
        }
    }

    fn refuse<T>(&self, why: impl AsRef<str>) -> Result<T> {
        self.common.log.say(format!("refused what the frontend asks: {}", why.as_ref()));
        Err(Error::InvalidParam)
    }

    fn vring(&mut self, index: u32) -> Result<&mut Vring> {
        let count = self.vrings.len();
        match self.vrings.get_mut(index as usize) {
            Some(_) => Ok(&mut self.vrings[index as usize]),
            None => {
                let text = format!("queue {index}; there are {count} (queues = in the export)");
                self.refuse(text)
            }
        }
    }

    /// Tells the thread of a queue.
    fn tell(&self, index: u32, order: Order) {
        self.desks[index as usize % self.desks.len()].orders.put(order);
    }

    /// Waits for an I/O thread; none if the export ends meanwhile.
    fn hear<T>(&self, answer: &Receiver<T>, what: &str) -> Option<T> {
        let mut patience = Some(Instant::now() + PATIENCE);
        loop {
            // Acquire pairs with the Release of who stops the export.
            let stops = self.common.stop.load(Ordering::Acquire);
            // Not a wait for each of hundreds of queues whose threads listen no more.
            let wait = if stops { Duration::ZERO } else { Duration::from_millis(100) };
            match answer.recv_timeout(wait) {
                Ok(answer) => return Some(answer),
                Err(RecvTimeoutError::Disconnected) => return None,
                Err(RecvTimeoutError::Timeout) if stops => return None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            if patience.is_some_and(|until| Instant::now() > until) {
                patience = None;
                self.common.log.say(format!("{what}: still waiting for answers of a drive"));
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
            notifiers: std::mem::take(&mut vring.notifiers),
            memory,
            inflight,
            again,
            flags,
        };
        self.tell(index, Order::Start(Box::new(Queue::new(parts))));
        Ok(())
    }

    /// Goes on in these regions; waits until all rings do, and a while for what is in flight in
    /// others.
    fn change_memory(&mut self, regions: Vec<Arc<Region>>) -> Result<()> {
        let memory = match GuestMemory::new(regions) {
            Ok(memory) => Arc::new(memory),
            Err(error) => return self.refuse(error.to_string()),
        };
        let old = std::mem::replace(&mut self.memory, Arc::clone(&memory));
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
        let until = Instant::now() + REMOVAL_WAIT;
        while Arc::strong_count(&old) > 1 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// A descriptor for notifications, if it is one.
    fn eventfd(&self, file: Option<File>) -> Result<Option<OwnedFd>> {
        let Some(file) = file else { return Ok(None) };
        let path = format!("/proc/self/fd/{}", file.as_raw_fd());
        let is_eventfd = std::fs::read_link(path)
            .is_ok_and(|target| target.to_string_lossy().contains("[eventfd]"));
        // So that one that is full does not stop us.
        let flags = rustix::fs::fcntl_getfl(file.as_fd())
            .and_then(|old| rustix::fs::fcntl_setfl(&file, old | rustix::fs::OFlags::NONBLOCK));
        match is_eventfd && flags.is_ok() {
            true => Ok(Some(file.into())),
            false => self.refuse("a descriptor for notifications is no eventfd"),
        }
    }

    /// The device as it is before a frontend says anything.
    fn reset(&mut self) {
        self.stop_all();
        // A head that broke its ring is marked there, and the guest knows nothing of it any more.
        if let Some(inflight) = &self.inflight {
            inflight.forget();
        }
        self.features = 0;
        self.flags.write_back.store(true, Ordering::SeqCst);
        self.vrings.iter_mut().for_each(|vring| *vring = Vring::default());
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

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        Ok(())
    }

    fn reset_owner(&mut self) -> Result<()> {
        self.stop_all();
        self.vrings.iter_mut().for_each(|vring| vring.enabled = false);
        Ok(())
    }

    fn reset_device(&mut self) -> Result<()> {
        self.reset();
        Ok(())
    }

    fn get_features(&mut self) -> Result<u64> {
        Ok(self.config.features())
    }

    fn set_features(&mut self, features: u64) -> Result<()> {
        let unknown = features & !self.config.features();
        if unknown != 0 {
            return self.refuse(format!("features {unknown:#x}, which were not offered"));
        }
        let before = std::mem::replace(&mut self.features, features);
        if features & feature::CONFIG_WCE == 0 {
            let write_back = features & feature::FLUSH != 0;
            self.flags.write_back.store(write_back, Ordering::SeqCst);
        } else if before & feature::CONFIG_WCE == 0 {
            // Another driver than the one before, which had no switch.
            self.flags.write_back.store(true, Ordering::SeqCst);
        }
        Ok(())
    }

    fn get_protocol_features(&mut self) -> Result<VhostUserProtocolFeatures> {
        Ok(VhostUserProtocolFeatures::MQ
            | VhostUserProtocolFeatures::CONFIG
            | VhostUserProtocolFeatures::REPLY_ACK
            | VhostUserProtocolFeatures::BACKEND_REQ
            | VhostUserProtocolFeatures::INFLIGHT_SHMFD
            | VhostUserProtocolFeatures::RESET_DEVICE
            | VhostUserProtocolFeatures::CONFIGURE_MEM_SLOTS)
    }

    fn set_protocol_features(&mut self, features: u64) -> Result<()> {
        self.protocol = VhostUserProtocolFeatures::from_bits_truncate(features);
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        Ok(self.vrings.len() as u64)
    }

    fn get_max_mem_slots(&mut self) -> Result<u64> {
        Ok(REGIONS_MAX as u64)
    }

    fn set_mem_table(
        &mut self,
        ctx: &[VhostUserMemoryRegion],
        files: Vec<File>,
        _postcopy: Option<bool>,
    ) -> Result<Option<Vec<vhost::VhostUserMemoryRegionBase>>> {
        let mapped = ctx.iter().zip(files).map(|(region, file)| map(file, region));
        match mapped.collect::<std::result::Result<Vec<_>, _>>() {
            Ok(regions) => self.change_memory(regions).map(|()| None),
            Err(why) => self.refuse(why),
        }
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<vhost::VhostUserMemoryRegionBase>> {
        match map(fd, region) {
            Ok(added) => {
                let mut regions = self.memory.regions().to_vec();
                regions.push(added);
                self.change_memory(regions).map(|()| None)
            }
            Err(why) => self.refuse(why),
        }
    }

    fn remove_mem_region(&mut self, region: &VhostUserSingleMemoryRegion) -> Result<()> {
        let is_it = |known: &Arc<Region>| {
            let address = known.address();
            address.guest == region.guest_phys_addr
                && address.len_bytes == region.memory_size
                && address.user == region.user_addr
        };
        let mut regions = self.memory.regions().to_vec();
        let Some(place) = regions.iter().position(is_it) else {
            let at = region.guest_phys_addr;
            return self.refuse(format!("there is no memory region at {at:#x} to remove"));
        };
        regions.remove(place);
        self.change_memory(regions)
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let vring = self.vring(index)?;
        match u16::try_from(num) {
            Ok(size) if size.is_power_of_two() && size <= SIZE_MAX && !vring.served => {
                vring.size = size;
                Ok(())
            }
            _ => self.refuse(format!(
                "queue {index} of {num} descriptors; a power of two up to {SIZE_MAX} while it is \
                 not served"
            )),
        }
    }

    fn set_vring_addr(
        &mut self,
        index: u32,
        _flags: VhostUserVringAddrFlags,
        descriptor: u64,
        used: u64,
        available: u64,
        _log: u64,
    ) -> Result<()> {
        self.vring(index)?.addresses = Some([descriptor, available, used]);
        Ok(())
    }

    fn set_vring_base(&mut self, index: u32, base: u32) -> Result<()> {
        self.vring(index)?.base = base as u16;
        Ok(())
    }

    fn get_vring_base(&mut self, index: u32) -> Result<VhostUserVringState> {
        self.vring(index)?;
        let Some(base) = self.stop(index) else {
            return Err(Error::BackendInternalError);
        };
        self.vrings[index as usize].notifiers = Notifiers::default();
        Ok(VhostUserVringState::new(index, base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = self.eventfd(fd)?;
        if kick.is_none() {
            return self.refuse("a queue without an eventfd for kicks; it cannot be served idle");
        }
        let vring = self.vring(index.into())?;
        if vring.served {
            self.tell(index.into(), Order::Kick(index.into(), kick));
            return Ok(());
        }
        vring.notifiers.kick = kick;
        self.start(index.into())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = self.eventfd(fd)?;
        let vring = self.vring(index.into())?;
        if vring.served {
            self.tell(index.into(), Order::Call(index.into(), call));
        } else {
            vring.notifiers.call = call;
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let error = self.eventfd(fd)?;
        let vring = self.vring(index.into())?;
        if vring.served {
            self.tell(index.into(), Order::Error(index.into(), error));
        } else {
            vring.notifiers.error = error;
        }
        Ok(())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let vring = self.vring(index)?;
        vring.enabled = enable;
        if vring.served {
            self.tell(index, Order::Enable(index as u16, enable));
        }
        Ok(())
    }

    fn get_config(
        &mut self,
        offset: u32,
        size: u32,
        _flags: VhostUserConfigFlags,
    ) -> Result<Vec<u8>> {
        let (from, size) = (offset as usize, size as usize);
        if from.saturating_add(size) > CONFIG_MAX {
            return self.refuse(format!("{size} bytes at {from} of the configuration space"));
        }
        let write_back = self.flags.write_back.load(Ordering::SeqCst);
        let capacity = self.common.volume.capacity();
        let mut bytes = Config { capacity, write_back, ..self.config }.bytes().to_vec();
        // Fields of newer devices read as zeroes.
        bytes.resize(CONFIG_MAX, 0);
        Ok(bytes[from..from + size].to_vec())
    }

    fn set_config(&mut self, offset: u32, buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        // All else is not the guest's to set; a guest that tries is ignored, as the hardware would.
        let place = WCE_OFFSET.checked_sub(offset as usize).and_then(|at| buf.get(at));
        if let Some(value) = place.filter(|_| self.features & feature::CONFIG_WCE != 0) {
            self.flags.write_back.store(*value != 0, Ordering::SeqCst);
        }
        Ok(())
    }

    fn get_inflight_fd(
        &mut self,
        inflight: &VhostUserInflight,
    ) -> Result<(VhostUserInflight, File)> {
        let (queues, size) = (inflight.num_queues, inflight.queue_size);
        match Inflight::create(queues, size) {
            Ok((region, file, bytes)) => {
                self.inflight = Some(region);
                Ok((VhostUserInflight::new(bytes, 0, queues, size), file))
            }
            Err(error) => self.refuse(error.to_string()),
        }
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let shape = (inflight.num_queues, inflight.queue_size);
        match Inflight::open(file, inflight.mmap_offset, shape) {
            Ok(region) => {
                self.inflight = Some(region);
                Ok(())
            }
            Err(error) => self.refuse(error.to_string()),
        }
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        self.refuse("this is no GPU")
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        self.refuse("there are no shared objects")
    }

    fn set_device_state_fd(
        &mut self,
        _direction: VhostTransferStateDirection,
        _phase: VhostTransferStatePhase,
        _fd: File,
    ) -> Result<Option<File>> {
        self.refuse("the device has no state to transfer")
    }

    fn check_device_state(&mut self) -> Result<()> {
        self.refuse("the device has no state to transfer")
    }

    fn get_shmem_config(&mut self) -> Result<VhostUserShMemConfig> {
        self.refuse("there is no shared memory")
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        self.refuse("dirty pages are not logged; live migration is not supported")
    }
}
