//! Clients that contend for drives: measures each client's share, and the fairness of the shares.
//!
//! Each client has its own group, I/O depth, block size and kind of I/O. In contrast, all jobs of a
//! row in `simulation` or `bench` have the same settings. The clients use the production block
//! layer.
//!
//! - `client`: the loop of one client.
//! - `run`: creates the drives and the threads, on a simulated machine or on this machine.
//! - `result`: the results.

mod client;
mod result;
mod run;

use millrace_block::{CostModel, GroupConfig, GroupId, Layout, SchedulerKind, Spread};
use millrace_drives::Spec;

use crate::load::bench::BenchError;
use crate::load::workload::Rw;

pub use result::{ClientRow, ClientTimeline, ContentionReport, FailedIos, jain};
pub use run::{contend, contend_simulated};

/// Largest number of clients of a plan.
pub const CLIENTS_MAX: usize = 4096;
const BUFFERS_MAX: u64 = 1 << 30;

/// Client of a plan: a thread with a channel, which keeps `iodepth` I/Os in flight.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Client {
    /// Name of the client in reports.
    pub name: String,
    /// Name of the group that the client's I/Os count towards.
    pub group: GroupId,
    /// Kind of I/O.
    pub rw: Rw,
    /// Size of an I/O in bytes: a multiple of 512.
    pub bs_bytes: u32,
    /// Number of I/Os in flight, 1 to 65,536.
    pub iodepth: u32,
    /// CPU that the client runs on; several clients may share a CPU. With `None` on this machine,
    /// the client may run on any CPU. With `None` on a simulated machine, client number n runs on
    /// CPU n.
    pub cpu: Option<u32>,
    /// Time after the start of the run at which the client begins, in nanoseconds.
    pub start_ns: u64,
    /// Pause of the client after a completion, before it submits more I/Os, in nanoseconds.
    pub thinktime_ns: u64,
    /// Number of writes from one flush to the next; 0 for no flushes.
    pub fsync: u32,
    /// True if writes are durable once they complete (FUA).
    pub sync: bool,
}

/// Phases of a run: the warm-up, and the part that is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Phases {
    /// Length of the warm-up, which is not measured, in nanoseconds.
    pub warm_up_ns: u64,
    /// Length of the measured time in nanoseconds, 1 or more.
    pub length_ns: u64,
    /// Length of a step of [`ClientTimeline::series`] in nanoseconds, 1 or more; `None` keeps no
    /// series.
    pub step_ns: Option<u64>,
    /// True to record the completion times ([`ClientTimeline::times_ns`]).
    pub times: bool,
}

/// Plan of an experiment: clients, their groups and the drives that they share.
#[derive(Debug, Clone)]
pub struct ContentionPlan {
    /// Drives that the clients share.
    pub drives: Vec<Spec>,
    /// Layout that joins the drives into a volume.
    pub layout: Layout,
    /// Scheduler of the drives.
    pub scheduler: SchedulerKind,
    /// Placement of software queues and of hardware queues.
    pub queues: (Spread, Spread),
    /// Cost model of a drive's I/Os, which the scheduler and the reported shares use.
    pub cost: CostModel,
    /// Groups of the clients: the first is `GroupId(1)`, and so on.
    pub groups: Vec<GroupConfig>,
    /// List of the 1 to [`CLIENTS_MAX`] clients that share the drives.
    pub clients: Vec<Client>,
    /// Phases of the run.
    pub phases: Phases,
    /// Seed of the random offsets and of the simulation.
    pub seed: u64,
}

impl ContentionPlan {
    fn cpu_of(&self, number: usize) -> u32 {
        self.clients[number].cpu.unwrap_or(number as u32)
    }

    /// Checks the plan, but not its drives. `cpus` is the number of CPUs of a simulated machine, or
    /// `None` for this machine.
    fn check(&self, cpus: Option<u32>) -> Result<(), BenchError> {
        let wrong = |text: String| Err(BenchError::Workload(text));
        let count = self.clients.len();
        if !(1..=CLIENTS_MAX).contains(&count) {
            return wrong(format!("{count} clients are not possible; use 1 to {CLIENTS_MAX}"));
        }
        if self.phases.length_ns == 0 || self.phases.step_ns == Some(0) {
            return wrong("the plan has a measured time of 0; use 1 ns or more".into());
        }
        for (number, client) in self.clients.iter().enumerate() {
            let (name, cpu) = (&client.name, self.cpu_of(number));
            if let Some(cpus) = cpus.filter(|cpus| cpu >= *cpus) {
                return wrong(format!(
                    "client {name}: CPU {cpu}, but the machine has {cpus}; give it a cpu from 0 \
                     to {}, which clients may share",
                    cpus - 1
                ));
            }
            if !(1..=65_536).contains(&client.iodepth) {
                return wrong(format!(
                    "client {name}: iodepth {} is out of range; use 1 to 65536",
                    client.iodepth
                ));
            }
            if client.start_ns >= self.phases.warm_up_ns + self.phases.length_ns {
                return wrong(format!(
                    "client {name}: starts only after the end of the run; use an earlier start"
                ));
            }
        }
        let bytes = |client: &Client| u64::from(client.bs_bytes) * u64::from(client.iodepth);
        let all: u64 = self.clients.iter().map(bytes).sum();
        if all > BUFFERS_MAX {
            let (all, most) = (all >> 20, BUFFERS_MAX >> 20);
            return wrong(format!(
                "the clients' buffers, iodepth times bs each, are {all} MiB; at most {most} MiB"
            ));
        }
        Ok(())
    }

    fn group_of(&self, client: &Client) -> (&str, u32) {
        let at = usize::from(client.group.0).checked_sub(1);
        let group = at.and_then(|at| self.groups.get(at));
        group.map_or(("default", 100), |group| (&group.name, group.weight))
    }
}

#[cfg(test)]
mod tests;
