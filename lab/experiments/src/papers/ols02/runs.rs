//! Which points each part of \[OLS\] needs, and what they gave.
//!
//! Parts share points; each is run once, side by side with others. Results do not depend on the
//! order.

use millrace_simulator::Model;
use millrace_trace::LockLine;

use super::rigs::{Ablation, Case, Load, MACHINE, Step};
use crate::load::bench::BenchError;
use crate::papers::{self, Mechanism};
use crate::simulation::{ObservedRow, TimeUse, run_observed};

/// The rows of the microbenchmark.
pub(super) const DM: [Step; 5] = [Step::Baseline, Step::Sb, Step::Sbi, Step::Sbir, Step::Linux25];
/// Its rows by readv.
pub(super) const READV: [Step; 3] = [Step::Sbir, Step::Sbirv, Step::Linux25];
/// The rows of the database's workload.
pub(super) const DSW: [Step; 5] = [Step::Baseline, Step::Sb, Step::Sbi, Step::Sbir, Step::Sbirv];

/// What is run without each mechanism.
pub(super) fn ablated(without: Ablation) -> Vec<Case> {
    let dm = |step| Case::new(step, Load::Dm).but(without);
    match without {
        Ablation::Copies => vec![dm(Step::Baseline)],
        Ablation::Kernel | Ablation::Crowd => DM.map(dm).to_vec(),
        Ablation::DriverLock => {
            let readv = Case::new(Step::Sbir, Load::DmReadv).but(without);
            vec![dm(Step::Sbi), readv]
        }
        Ablation::CommandTime => {
            vec![dm(Step::Sbir), Case::new(Step::Sbir, Load::DmReadv).but(without)]
        }
        Ablation::Bandwidth => vec![dm(Step::Sb), dm(Step::Sbi), dm(Step::Sbir)],
    }
}

impl papers::Point for Case {
    type Measurement = ObservedRow;
    const OWN: &'static [Mechanism] = &[
        Mechanism::Copies,
        Mechanism::Kernel,
        Mechanism::DriverLock,
        Mechanism::AdapterCommand,
        Mechanism::AdapterBandwidth,
        Mechanism::Crowd,
    ];

    fn of(part: &str) -> Vec<Case> {
        match part {
            "dm" => DM.map(|step| Case::new(step, Load::Dm)).to_vec(),
            "readv" => READV.map(|step| Case::new(step, Load::DmReadv)).to_vec(),
            "dsw" => DSW.map(|step| Case::new(step, dsw())).to_vec(),
            "ablations" => {
                Ablation::ALL.into_iter().flat_map(|(without, _)| ablated(without)).collect()
            }
            // On this machine.
            _ => Vec::new(),
        }
    }

    fn without(self, mechanism: Mechanism) -> Case {
        match mechanism {
            Mechanism::Copies => self.but(Ablation::Copies),
            Mechanism::Kernel => self.but(Ablation::Kernel),
            Mechanism::DriverLock => self.but(Ablation::DriverLock),
            Mechanism::AdapterCommand => self.but(Ablation::CommandTime),
            Mechanism::AdapterBandwidth => self.but(Ablation::Bandwidth),
            Mechanism::Crowd => self.but(Ablation::Crowd),
            _ => self,
        }
    }

    fn machine(&self) -> &'static str {
        MACHINE
    }

    fn task(&self) -> String {
        self.in_words()
    }

    fn work(&self) -> u32 {
        match self.step {
            Step::Sb => 3,
            Step::Sbi => 4,
            _ => 1,
        }
    }

    fn run(&self, model: &Model, seed: u64) -> Result<ObservedRow, BenchError> {
        run_observed(model, &self.plan(&model.name, seed))
    }

    fn events(seen: &ObservedRow) -> u64 {
        seen.row.machine.as_ref().and_then(|machine| machine.sim_events).unwrap_or(0)
    }
}

/// The load of the database's workload: a read of 64 KiB, and what is computed of it.
pub(super) fn dsw() -> Load {
    Load::Dsw { compute_ns: super::DSW_COMPUTE_NS }
}

/// All points that were run.
pub(super) type Results = papers::Results<Case>;

/// What a row says of a step: bytes a second, and parts of all CPUs' time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RowSummary {
    pub(super) mb_per_s: f64,
    pub(super) idle: f64,
    pub(super) spin: f64,
    pub(super) user: f64,
    /// Pages and copies of bounces.
    pub(super) bounces: f64,
}

/// What was seen of a point.
pub(super) fn shown(seen: &ObservedRow) -> RowSummary {
    let cpus = &seen.cpus;
    let all = (cpus.busy_ns + cpus.spin_ns + cpus.idle_ns) as f64;
    let spent = |on: TimeUse| seen.spent_ns.get(on as usize).copied().unwrap_or(0);
    let (user, bounces) =
        (spent(TimeUse::User), spent(TimeUse::BouncePages) + spent(TimeUse::BounceCopies));
    RowSummary {
        mb_per_s: seen.row.bw_bytes_per_s / 1e6,
        idle: cpus.idle_ns as f64 / all,
        spin: cpus.spin_ns as f64 / all,
        user: user as f64 / all,
        bounces: bounces as f64 / all,
    }
}

/// The lines of a lock in what was seen of a point.
pub(super) fn locks(seen: &ObservedRow) -> &[LockLine] {
    seen.row.machine.as_ref().and_then(|machine| machine.locks.as_deref()).unwrap_or(&[])
}

impl Results {
    /// What a row says of a step under a load.
    pub(super) fn shown(&self, step: Step, load: Load) -> Option<RowSummary> {
        self.at(Case::new(step, load)).map(shown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::papers::run_without;
    use crate::simulation::machine;

    #[test]
    fn copies_take_time_of_the_bottom_half_and_adapters_bound_the_rate() {
        let model = machine(MACHINE).expect("a known machine");
        let seen = |step, without: &[Mechanism]| {
            let case = Case::new(step, Load::Dm);
            shown(&run_without(&case, &model, (1, without)).expect("it runs"))
        };
        let case = Case::new(Step::Baseline, Load::Dm);
        let idle = |without| seen(Step::Baseline, without).idle;
        assert!(idle(&[Mechanism::Copies]) > idle(&[]) + 0.03);
        let rate = |without| seen(Step::Sbir, without).mb_per_s;
        assert!(rate(&[Mechanism::AdapterBandwidth]) > 2.0 * rate(&[]));
        for mechanism in <Case as papers::Point>::OWN {
            let other = papers::Point::without(case, *mechanism);
            assert!(other != case && other.in_words().contains(", without "), "{mechanism:?}");
        }
        let both = case.but(Ablation::Copies).but(Ablation::Crowd);
        assert!(both != case.but(Ablation::Copies) && both != case.but(Ablation::Crowd));
    }
}
