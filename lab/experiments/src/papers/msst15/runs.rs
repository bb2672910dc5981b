//! Which points each part of \[MIOT\] needs, and what they gave.
//!
//! Parts share points; each is run once, side by side with others. Results do not depend on the
//! order.

use millrace_simulator::Model;

use super::rigs::{Device, EFFECTS, LOADS, MODES, PROCESSES, Point, ProcessPlace, VARIANTS};
use crate::load::bench::BenchError;
use crate::papers::{self, Mechanism};
use crate::simulation::run_simulated;
use crate::vm::{Effects, QueueService, VmCosts, VmResult, run_vm};

/// I/O threads of the guest with 4 vCPUs.
pub(super) const THREADS: [u32; 4] = [1, 2, 3, 4];

/// Processes with which effects are switched off.
pub(super) const EFFECT_PROCESSES: [u32; 3] = [1, 4, PROCESSES];

/// Times what guest and exits cost.
pub(super) const DEARER: [u32; 5] = [1, 2, 4, 6, 8];

/// Three modes, all loads and processes.
fn modes(device: Device) -> Vec<Point> {
    let each = |load| {
        let counts = MODES.iter().flat_map(move |(_, served)| {
            (1..=PROCESSES).map(move |count| Point::guest(device, load, *served, count))
        });
        counts.collect::<Vec<_>>()
    };
    LOADS.into_iter().flat_map(each).collect()
}

impl papers::Point for Point {
    type Measurement = VmResult;
    const OWN: &'static [Mechanism] = &[
        Mechanism::Preemption,
        Mechanism::Roaming,
        Mechanism::Bound,
        Mechanism::Translation,
        Mechanism::Signals,
    ];
    /// No single queue is run.
    const UNUSED: &'static [Mechanism] = &[Mechanism::Lines];

    fn of(part: &str) -> Vec<Point> {
        match part {
            "null" => modes(Device::Null),
            "nvme" => modes(Device::Nvme),
            "gap" => {
                let of = |device: Device| {
                    (1..=PROCESSES).flat_map(move |count| {
                        let guest = MODES.map(|(_, s)| Point::guest(device, LOADS[0], s, count));
                        guest.into_iter().chain([Point::host(device, LOADS[0], count)])
                    })
                };
                Device::ALL.into_iter().flat_map(of).collect()
            }
            "threads" => {
                let of = |device| THREADS.map(|threads| Point::threads(device, threads));
                Device::ALL.into_iter().flat_map(of).collect()
            }
            "ablations" => {
                let of =
                    |device| VARIANTS.map(|(_, s)| Point::guest(device, LOADS[0], s, PROCESSES));
                Device::ALL.into_iter().flat_map(of).collect()
            }
            "effects" => {
                let each = |device, count| {
                    EFFECTS.iter().flat_map(move |(_, effects)| {
                        MODES.map(|(_, served)| {
                            Point::guest(device, LOADS[0], served, count).with(*effects)
                        })
                    })
                };
                let counts = EFFECT_PROCESSES.into_iter();
                let of = |device| counts.clone().flat_map(move |count| each(device, count));
                Device::ALL.into_iter().flat_map(of).collect()
            }
            _ => {
                let of = |device: Device| {
                    DEARER.into_iter().flat_map(move |dearer| {
                        MODES.map(|(_, served)| {
                            Point::guest(device, LOADS[0], served, PROCESSES).dearer(dearer)
                        })
                    })
                };
                Device::ALL.into_iter().flat_map(of).collect()
            }
        }
    }

    fn without(self, mechanism: Mechanism) -> Point {
        let effects = self.effects;
        match mechanism {
            Mechanism::Preemption => self.with(Effects { preemption: false, ..effects }),
            Mechanism::Roaming => self.with(Effects { roaming: false, ..effects }),
            Mechanism::Bound => self.with(Effects { bound: false, ..effects }),
            Mechanism::Translation => self.with(Effects { translation: false, ..effects }),
            Mechanism::Signals => self.with(Effects { signals: false, ..effects }),
            _ => self,
        }
    }

    fn machine(&self) -> &'static str {
        self.device.machine()
    }

    fn task(&self) -> String {
        self.in_words()
    }

    fn work(&self) -> u32 {
        self.processes
    }

    fn run(&self, model: &Model, seed: u64) -> Result<VmResult, BenchError> {
        match self.who {
            ProcessPlace::Guest { vcpus, served } => {
                let costs = VmCosts::kvm_2015()?.with_guest_times(self.dearer);
                run_vm(model, &costs, &self.plan(vcpus, served, seed))
            }
            ProcessPlace::Host => run_simulated(model, &self.host_plan(seed)).map(|row| VmResult {
                iops: row.iops,
                latency_ns: row.lat_ns.mean as f64,
                events: row.machine.and_then(|machine| machine.sim_events).unwrap_or(0),
                ..VmResult::default()
            }),
        }
    }

    fn events(seen: &VmResult) -> u64 {
        seen.events
    }
}

/// All points that were run.
pub(super) type Results = papers::Results<Point>;

impl Results {
    /// I/Os a second of a point.
    pub(super) fn iops(&self, point: Point) -> Option<f64> {
        self.at(point).map(|seen| seen.iops)
    }

    /// The greatest of one mode's rate over another's, over loads and numbers of processes: the
    /// factor, the load and the number.
    pub(super) fn most(
        &self,
        (device, loads): (Device, &[usize]),
        (one, other): (QueueService, QueueService),
    ) -> Option<(f64, &'static str, u32)> {
        let mut most: Option<(f64, &'static str, u32)> = None;
        for load in loads.iter().map(|load| LOADS[*load]) {
            for count in 1..=PROCESSES {
                let rate = |served| self.iops(Point::guest(device, load, served, count));
                let factor = rate(one)? / rate(other)?;
                if most.is_none_or(|(best, ..)| factor > best) {
                    most = Some((factor, load.name, count));
                }
            }
        }
        most
    }

    /// What a mode loses against the host, 0 to 1.
    pub(super) fn loss(&self, device: Device, served: QueueService, processes: u32) -> Option<f64> {
        let host = self.iops(Point::host(device, LOADS[0], processes))?;
        Some(1.0 - self.iops(Point::guest(device, LOADS[0], served, processes))? / host)
    }

    /// Waiting for a queue's lock in all I/Os, in nanoseconds each.
    pub(super) fn lock_wait_ns(&self, served: QueueService, processes: u32) -> Option<f64> {
        let point = Point::guest(Device::Null, LOADS[0], served, processes);
        self.at(point).map(|seen| seen.lock_wait_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::run_without;
    use crate::simulation::machine;

    #[test]
    fn holders_lose_their_cpu_and_hyper_threads_take_from_each_other_unless_left_out() {
        let model = machine("miot-nvme").expect("a known machine");
        let run = |without: &[Mechanism]| {
            let point = Point::guest(Device::Nvme, LOADS[0], super::super::rigs::BASELINE, 8);
            run_without(&point, &model, (1, without)).expect("it runs")
        };
        let (all, kept) = (run(&[]), run(&[Mechanism::Preemption]));
        assert!(
            all.locks.lost > 0 && kept.locks.lost == 0,
            "{} {}",
            all.locks.lost,
            kept.locks.lost
        );
        let apart = run(&[Mechanism::Sharing]);
        assert!(apart.iops > 1.01 * all.iops, "{} {}", apart.iops, all.iops);
    }

    #[test]
    fn qemus_mutex_and_its_signals_cost_something_unless_left_out() {
        let model = machine("miot").expect("a known machine");
        let run = |without: &[Mechanism]| {
            let point = Point::guest(Device::Null, LOADS[0], super::super::rigs::MIOT, 8);
            run_without(&point, &model, (1, without)).expect("it runs")
        };
        let (all, apart) = (run(&[]), run(&[Mechanism::Translation]));
        assert!(apart.iops > 1.02 * all.iops, "{} {}", apart.iops, all.iops);
        let together = run(&[Mechanism::Signals]);
        let exits = |seen: &VmResult| seen.counts.exits() as f64 / seen.counts.reaped as f64;
        assert!(2.0 * exits(&together) < exits(&all), "{} {}", exits(&together), exits(&all));
    }
}
