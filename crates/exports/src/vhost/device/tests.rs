//! Requests of a frontend that a device refuses, and the state that it keeps after a refusal.
#![allow(clippy::unwrap_used)] // Tests may.

use std::os::unix::net::UnixStream;
use std::sync::Mutex;

use millrace_block::GroupId;
use millrace_drives::FaultCache;
use vhost::vhost_user::message::{
    VhostTransferStateDirection, VhostTransferStatePhase, VhostUserProtocolFeatures,
};
use vhost::vhost_user::{GpuBackend, VhostUserBackendReqHandlerMut};

use super::control::FrontendLink;
use super::*;
use crate::mailbox::lock;
use crate::vhost::Say;
use crate::vhost::io_thread::{ExportContext, ThreadConfig};
use crate::vhost::log::ExportLog;
use crate::vhost::memory::memory_file;
use crate::vhost::tests::played::volume;
use crate::virtio::ID_BYTES;

/// A device without served rings, and its messages.
fn device() -> (Device, Arc<Mutex<Vec<String>>>) {
    let said = Arc::<Mutex<Vec<String>>>::default();
    let into = Arc::clone(&said);
    let say: Say = Arc::new(move |line: &str| lock(&into).push(line.to_owned()));
    let (volume, _) = volume(FaultCache::Inner);
    let (read_only, write_back, event_idx, queues) = (false, true, true, 2);
    let (capacity, limits) = (volume.capacity(), *volume.limits());
    let config = Config { capacity, limits, queues, read_only, write_back, event_idx };
    let reactor = millrace_reactor::Config::default();
    let settings = ThreadConfig { reactor, poll_max_ns: 0, wait_max_ns: 0 };
    let log = ExportLog::new("v", &say);
    let export = SharedExport {
        name: "v".to_owned(),
        link: FrontendLink::new(&log).unwrap(),
        common: Arc::new(ExportContext::new(volume, settings, log, None)),
        thread_states: vec![Arc::default()],
        tenant: 0,
        group: GroupId::DEFAULT,
    };
    (Device::new(Arc::new(export), config, [0; ID_BYTES]), said)
}

#[test]
fn what_a_block_device_without_migration_has_not_is_refused() {
    let (mut device, said) = device();
    let file = || memory_file("t", 4096).unwrap();
    let (stream, _other) = UnixStream::pair().unwrap();
    let (save, phase) = (VhostTransferStateDirection::SAVE, VhostTransferStatePhase::STOPPED);
    assert!(device.set_gpu_socket(GpuBackend::from_stream(stream)).is_err());
    assert!(device.get_shared_object(Default::default()).is_err());
    assert!(device.set_device_state_fd(save, phase, file()).is_err());
    assert!(device.check_device_state().is_err());
    assert!(device.get_shmem_config().is_err());
    assert!(device.set_log_base(&Default::default(), file()).is_err());
    let said = lock(&said);
    // Each refusal logs a line; of two equal ones only the first is logged.
    assert_eq!(said.len(), 5, "{said:?}");
    assert!(
        said.iter().all(|line| line.starts_with("export v: refused a request of the frontend: "))
    );
}

#[test]
fn frontend_told_of_a_restored_state_goes_on_once() {
    let answers = VhostUserProtocolFeatures::REPLY_ACK.bits();
    let others = !answers;
    for (features, hears) in [(answers, true), (others, false), (u64::MAX, true), (0, false)] {
        let (mut device, _) = device();
        device.set_protocol_features(features).unwrap();
        assert!(!device.goes_on(), "nothing was refused");
        assert!(device.remove_mem_region(&Default::default()).is_err());
        assert_eq!(device.goes_on(), hears, "{features:#x}");
        assert!(!device.goes_on(), "only once");
        assert!(device.set_vring_num(0, 3).is_err() && !device.goes_on());
    }
}
