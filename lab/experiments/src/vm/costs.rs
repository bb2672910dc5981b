//! `VmCosts`: costs of virtualisation, from a file beside the file of the simulated machine.
//!
//! Each cost names its origin, such as a publication, as in the machines' files. The costs do not
//! depend on the program in the guest. The vCPUs' threads and the I/O threads spend these costs as
//! virtual time.

use millrace_simulator::{Cost, Simulated};
use serde::Deserialize;

use crate::load::bench::BenchError;
use crate::simulation::read_costs;

const KVM_2015: &str = include_str!("../../machines/kvm-2015.toml");

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct VmCosts {
    pub(crate) name: String,
    pub(crate) exits: Exits,
    pub(crate) guest: Guest,
    pub(crate) device: Device,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Exits {
    pub(crate) kick: Cost,
    pub(crate) pause: Cost,
    pub(crate) pause_window: Cost,
    pub(crate) interrupt: Cost,
    pub(crate) halt: Cost,
    pub(crate) ipi: Cost,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Guest {
    pub(crate) interrupt: Cost,
    pub(crate) interface: Cost,
    pub(crate) layer: Cost,
    pub(crate) complete: Cost,
    pub(crate) add: Cost,
    pub(crate) get: Cost,
    pub(crate) page: Cost,
}

#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Device {
    pub(crate) poll: Cost,
    pub(crate) event: Cost,
    pub(crate) request: Cost,
    pub(crate) page: Cost,
    pub(crate) submit: Cost,
    pub(crate) reap: Cost,
    pub(crate) complete: Cost,
    pub(crate) signal: Cost,
}

impl VmCosts {
    pub(crate) fn kvm_2015() -> Result<VmCosts, BenchError> {
        read_costs(("kvm-2015", KVM_2015), VmCosts::entries)
    }

    /// Returns the costs with the times of VM exits and of the guest's kernel multiplied by
    /// `factor`, to measure how much results depend on these times.
    pub(crate) fn with_guest_times(&self, factor: u32) -> VmCosts {
        let mut dearer = self.clone();
        let Exits { kick, pause, interrupt: exit, halt, ipi, .. } = &mut dearer.exits;
        let Guest { interrupt, interface, layer, complete, add, get, page } = &mut dearer.guest;
        let exits = [kick, pause, exit, halt, ipi];
        let guest = [interrupt, interface, layer, complete, add, get, page];
        for cost in exits.into_iter().chain(guest) {
            cost.ns *= f64::from(factor);
        }
        dearer
    }

    pub(crate) fn entries(&self) -> Vec<(&'static str, &Cost)> {
        let VmCosts { exits, guest, device, .. } = self;
        vec![
            ("exit: notification of the device", &exits.kick),
            ("exit: a vCPU has spun for too long", &exits.pause),
            ("exit: interrupt for a running vCPU", &exits.interrupt),
            ("exit: halt", &exits.halt),
            ("exit: IPI to another vCPU", &exits.ipi),
            ("guest: taking an interrupt", &guest.interrupt),
            ("guest: submission interface", &guest.interface),
            ("guest: block layer, submission", &guest.layer),
            ("guest: block layer, completion", &guest.complete),
            ("guest: virtio driver, adding a request", &guest.add),
            ("guest: virtio driver, taking a request back", &guest.get),
            ("guest: each further page of a request", &guest.page),
            ("device: ppoll", &device.poll),
            ("device: reading an eventfd", &device.event),
            ("device: request through QEMU", &device.request),
            ("device: each further page of a request", &device.page),
            ("device: io_submit, fixed part", &device.submit),
            ("device: io_getevents", &device.reap),
            ("device: completion in QEMU", &device.complete),
            ("device: interrupt by irqfd", &device.signal),
            ("time that a vCPU spins before an exit", &exits.pause_window),
        ]
    }
}

pub(super) fn charge(cost: &Cost, times: u32) {
    Simulated::charge((cost.ns * f64::from(times)).round() as u64);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_is_whole_and_every_entry_has_an_origin() {
        let costs = VmCosts::kvm_2015().expect("the built-in file must be valid");
        assert_eq!(costs.name, "kvm-2015");
        assert!(costs.entries().iter().all(|(_, cost)| cost.ns > 0.0));
        let dearer = costs.with_guest_times(3);
        let tripled = |at: usize| dearer.entries()[at].1.ns == 3.0 * costs.entries()[at].1.ns;
        assert!((0..12).all(tripled) && !(12..21).any(tripled), "the guest's come first");
    }
}
