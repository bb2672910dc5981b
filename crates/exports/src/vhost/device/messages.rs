//! Checks each message of a frontend and applies it to the device.
//!
//! A refused message is logged and ends the connection, because most messages have no reply that
//! could report the error. Adding or removing a memory region is the exception, if the frontend
//! requested a reply. A refused message then changes nothing, and the reply reports the error.

use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserConfigFlags, VhostUserInflight,
    VhostUserLog, VhostUserMemoryRegion, VhostUserProtocolFeatures, VhostUserShMemConfig,
    VhostUserSharedMsg, VhostUserSingleMemoryRegion, VhostUserVringAddrFlags, VhostUserVringState,
};
use vhost::vhost_user::{Error, GpuBackend, Result, VhostUserBackendReqHandlerMut};

use super::{CONFIG_MAX, Device, map};
use crate::vhost::io_thread::ThreadOrder;
use crate::vhost::memory::{REGIONS_MAX, Region};
use crate::vhost::queue::blk::Config;
use crate::vhost::queue::inflight::Inflight;
use crate::vhost::ring::SIZE_MAX;
use crate::virtio::config;

/// Log line for a guest that was started on another server. That server may have reported no
/// volatile cache, so that the guest sends no flushes.
const NOT_STARTED_HERE: &str = "this guest was started on another server and may send no flushes (as with qemu-storage-daemon), so \
     each write is made durable before it is answered; restart its QEMU, or run in the guest `echo \
     write back > /sys/block/vda/cache_type`, to let the cache answer writes";

impl VhostUserBackendReqHandlerMut for Device {
    fn set_owner(&mut self) -> Result<()> {
        // The frontend keeps its connection for the next device that it creates, so another session
        // may begin.
        if std::mem::replace(&mut self.owned, true) {
            self.begin_session();
        }
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
            return self.refuse(self.lacks(unknown));
        }
        self.features = features;
        self.apply_write_back();
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
        // The crate `vhost` stores the features and rejects unknown ones.
        self.answers = features & VhostUserProtocolFeatures::REPLY_ACK.bits() != 0;
        Ok(())
    }

    fn get_queue_num(&mut self) -> Result<u64> {
        self.asked_queues = true;
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
        self.change_memory(mapped.collect()).map(|()| None)
    }

    fn add_mem_region(
        &mut self,
        region: &VhostUserSingleMemoryRegion,
        fd: File,
        _postcopy: Option<bool>,
    ) -> Result<Option<vhost::VhostUserMemoryRegionBase>> {
        let known = self.memory.regions().iter().cloned().map(Ok);
        let regions = known.chain([map(fd, region)]).collect();
        let done = self.change_memory(regions).map(|()| None);
        self.whole = done.is_err();
        done
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
            self.whole = true;
            return self.refuse(format!(
                "cannot remove the memory region at {at:#x}: there is no such region"
            ));
        };
        regions.remove(place);
        self.change_memory(Ok(regions))
    }

    fn set_vring_num(&mut self, index: u32, num: u32) -> Result<()> {
        let vring = self.vring(index)?;
        match u16::try_from(num) {
            Ok(size) if size.is_power_of_two() && size <= SIZE_MAX && !vring.served => {
                vring.size = size;
                Ok(())
            }
            _ => self.refuse(format!(
                "queue {index}: size {num} refused; it must be a power of two up to {SIZE_MAX}, and the \
                 queue must be stopped"
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
        if !self.stop(index..index + 1) {
            return Err(Error::BackendInternalError);
        }
        let vring = self.vring(index)?;
        vring.notifiers.forget();
        Ok(VhostUserVringState::new(index, vring.base.into()))
    }

    fn set_vring_kick(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let kick = self.eventfd(fd)?;
        if kick.is_none() {
            return self.refuse(
                "a queue needs an eventfd for kicks, so that the server can sleep while it is idle",
            );
        }
        let vring = self.vring(index.into())?;
        if vring.served {
            self.tell(index.into(), ThreadOrder::Kick(index.into(), kick));
            return Ok(());
        }
        vring.notifiers.kick = kick;
        self.start(index.into())
    }

    fn set_vring_call(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let call = self.eventfd(fd)?;
        let vring = self.vring(index.into())?;
        if vring.served {
            self.change(index.into(), move |queue| {
                queue.notifiers.call = call;
                queue.interrupt();
            });
        } else {
            vring.notifiers.call = call;
        }
        Ok(())
    }

    fn set_vring_err(&mut self, index: u8, fd: Option<File>) -> Result<()> {
        let error = self.eventfd(fd)?.map(Arc::new);
        let vring = self.vring(index.into())?;
        vring.notifiers.error.clone_from(&error);
        if vring.served {
            self.change(index.into(), move |queue| queue.notifiers.error = error);
        }
        Ok(())
    }

    fn set_vring_enable(&mut self, index: u32, enable: bool) -> Result<()> {
        let vring = self.vring(index)?;
        vring.enabled = enable;
        if vring.served {
            self.change(index, move |queue| queue.enabled = enable);
        }
        if enable && !std::mem::replace(&mut self.config_read, true) {
            // A frontend that reconnects does not read the size of the device again. The
            // notification makes it read the size, which may have changed.
            self.export.link.notify_config_change();
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
            return self.refuse(format!(
                "{size} bytes at offset {from} are outside the configuration space"
            ));
        }
        let known = std::mem::replace(&mut self.config_read, true);
        if !known && self.is_new() {
            // SeqCst for simplicity: the value changes rarely, and only this thread reads it.
            self.export.common.write_back.store(true, Ordering::SeqCst);
        }
        let write_back = self.export.common.write_back.load(Ordering::SeqCst);
        let capacity = self.export.common.volume.capacity();
        let mut bytes = Config { capacity, write_back, ..self.config }.bytes().to_vec();
        // Fields of newer device versions read as zeroes.
        bytes.resize(CONFIG_MAX, 0);
        Ok(bytes[from..from + size].to_vec())
    }

    fn set_config(&mut self, offset: u32, buf: &[u8], _flags: VhostUserConfigFlags) -> Result<()> {
        // Guests can set only the write-back switch. Writes to other fields are ignored, as a
        // hardware device would ignore them.
        let place = config::WRITEBACK.checked_sub(offset as usize).and_then(|at| buf.get(at));
        if let Some(value) = place {
            // The write-back switch is stored even if its feature is not negotiated yet: a frontend
            // sends the switch only once.
            self.export.common.write_back.store(*value != 0, Ordering::SeqCst);
            self.apply_write_back();
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
                if !self.config_read {
                    // The frontend did not read the configuration space from this server. So the
                    // guest was started on another server, and read the configuration there. If
                    // that server was qemu-storage-daemon, which reports no cache, the guest sends
                    // no flushes. So each write must be durable before it is answered.
                    self.export.common.write_back.store(false, Ordering::SeqCst);
                    if self.export.common.unflushed.tracks() {
                        self.export.common.log.say(NOT_STARTED_HERE);
                    }
                }
                self.export.common.unflushed.follow(&region);
                self.inflight = Some(region);
                self.apply_write_back();
                Ok((VhostUserInflight::new(bytes, 0, queues, size), file))
            }
            Err(error) => self.refuse(error.to_string()),
        }
    }

    fn set_inflight_fd(&mut self, inflight: &VhostUserInflight, file: File) -> Result<()> {
        let shape = (inflight.num_queues, inflight.queue_size);
        match Inflight::open(file, inflight.mmap_offset, shape) {
            Ok(region) => {
                if region.is_write_through() {
                    self.export.common.write_back.store(false, Ordering::SeqCst);
                }
                if self.export.common.unflushed.follow(&region) {
                    self.export.common.log.say(
                        "the last daemon ended before it flushed writes that it had answered; the \
                         guest's next flush fails with an I/O error to report this",
                    );
                }
                self.inflight = Some(region);
                self.apply_write_back();
                Ok(())
            }
            Err(error) => self.refuse(error.to_string()),
        }
    }

    fn set_gpu_socket(&mut self, _gpu_backend: GpuBackend) -> Result<()> {
        self.refuse("this device is not a GPU")
    }

    fn get_shared_object(&mut self, _uuid: VhostUserSharedMsg) -> Result<File> {
        self.refuse("this device has no shared objects")
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
        self.refuse("this device has no shared memory")
    }

    fn set_log_base(&mut self, _log: &VhostUserLog, _file: File) -> Result<()> {
        self.refuse("live migration is not supported: the server does not log dirty pages")
    }
}
