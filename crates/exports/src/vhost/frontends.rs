//! Reports on the connected frontends (virtual machines) for operators, and disconnects a frontend
//! on request.
//!
//! An export has one frontend at a time. The frontend's number is the tenant number that marks the
//! export's I/Os in the block layer and in traces.

use std::time::Duration;

use millrace_block::SECTOR_SHIFT;
use millrace_machine::{Machine, Native};

use super::device::control::Frontend;
use super::stats::QueueStats;
use super::{SharedExport, VhostObserver};
use crate::ClientReport;
use crate::counters::CounterTable as _;

impl VhostObserver {
    /// Returns reports of all connected frontends, in the order of the exports.
    #[must_use]
    pub fn clients(&self) -> Vec<ClientReport> {
        self.0.iter().filter_map(|seen| Some(seen.report(&seen.link.frontend()?))).collect()
    }

    /// Disconnects frontend `number`: its queues are stopped after their requests in flight are
    /// answered. Returns its report, or `None` if there is no such frontend.
    #[must_use]
    pub fn disconnect(&self, number: u16) -> Option<ClientReport> {
        let seen = self.0.iter().find(|seen| seen.tenant == number)?;
        let frontend = seen.link.frontend()?;
        let report = seen.report(&frontend);
        frontend.disconnect();
        Some(report)
    }
}

impl SharedExport {
    fn report(&self, frontend: &Frontend) -> ClientReport {
        let mut queues = QueueStats::default();
        let threads = self.thread_states.iter().map(|state| state.published.read());
        threads.flat_map(|thread| thread.queues).for_each(|(_, queue)| queues.add(queue));
        let (totals, before) = (self.totals(), frontend.totals_before);
        let [requests, bytes] = [0, 1].map(|at| totals[at].saturating_sub(before[at]));
        ClientReport {
            number: self.tenant,
            protocol: "vhost-user-blk",
            peer: frontend.peer.clone(),
            export: self.name.clone(),
            connected: Duration::from_nanos(Native::now().saturating_sub(frontend.since_ns)),
            requests,
            bytes,
            in_flight: u32::try_from(queues.in_flight).unwrap_or(u32::MAX),
            group: self.group,
            waits_for: if queues.waiting > 0 { "earlier requests" } else { "" },
        }
    }

    /// Returns the number of requests and the number of bytes that the block layer has counted for
    /// the export, under its tenant number.
    pub(super) fn totals(&self) -> [u64; 2] {
        let tenants = self.common.volume.tenants();
        let ops = tenants.iter().filter(|one| one.0 == self.tenant).flat_map(|(_, its)| &its.ops);
        ops.fold([0; 2], |[ios, bytes], op| [ios + op.ios, bytes + (op.sectors << SECTOR_SHIFT)])
    }
}
