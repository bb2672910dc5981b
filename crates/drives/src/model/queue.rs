//! `ModelQueue`: a hardware queue of a simulated SSD.
//!
//! The queue has the requests submitted since the last commit, and a heap of completion times, both
//! with room for every tag. Data are copied when a request is submitted; its service time begins at
//! the commit. Of two requests that complete at the same time, the one submitted first is completed
//! first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::Arc;

use millrace_block::{
    CompletionBatch, Dispatch, DriverData, DriverQueue, Expired, Moment, Op, OpFlags, Request,
    Status, Tag,
};
use millrace_machine::{Machine, lock_unpoisoned};

use super::ModelState;
use super::link::{ModelIo, ModelIoKind};
use crate::common::outcomes::completion_data;

pub(super) struct ModelQueue {
    shared: Arc<ModelState>,
    staged: Vec<(Tag, ModelIo)>,
    /// Completion time, sequence number and tag of the requests in service, earliest first.
    busy: BinaryHeap<Reverse<(u64, u64, Tag)>>,
    next_number: u64,
    service_ns: Box<[u64]>,
}

impl ModelQueue {
    pub(super) fn new(shared: Arc<ModelState>, depth: u32) -> ModelQueue {
        let depth = depth as usize;
        let (staged, busy) = (Vec::with_capacity(depth), BinaryHeap::with_capacity(depth));
        ModelQueue { shared, staged, busy, next_number: 0, service_ns: vec![0; depth].into() }
    }

    fn give_back(&self, count: usize) {
        if let Some(port) = self.shared.port.as_ref().filter(|_| count > 0) {
            port.give(count as u32);
        }
    }
}

fn io_of<M: Machine>(rq: &Request<M>) -> ModelIo {
    let kind = match rq.op() {
        Op::Read => ModelIoKind::Read,
        Op::Write if rq.flags().has(OpFlags::FUA) => ModelIoKind::DurableWrite,
        Op::Write => ModelIoKind::Write,
        Op::Flush => ModelIoKind::Flush,
        Op::Discard | Op::WriteZeroes => ModelIoKind::Command,
    };
    ModelIo { kind, sector: rq.sector(), nr_sectors: rq.nr_sectors() }
}

impl<M: Machine> DriverQueue<M> for ModelQueue {
    fn queue_rq(&mut self, rq: &Request<M>) -> Dispatch {
        if let Some(port) = &self.shared.port
            && !port.take()
        {
            // The block layer retries `DeviceBusy` after a completion of this queue. An idle queue
            // completes nothing, so `HostBusy` is returned.
            let idle = self.staged.is_empty() && self.busy.is_empty();
            return if idle { Dispatch::HostBusy } else { Dispatch::DeviceBusy };
        }
        if let Some(store) = &self.shared.store {
            store.run(rq);
        }
        self.staged.push((rq.tag(), io_of(rq)));
        Dispatch::Queued
    }

    fn trace_data(&self, tag: Tag, moment: Moment) -> DriverData {
        completion_data(moment, format_args!("took {} ns", self.service_ns[tag.0 as usize]))
    }

    fn commit_rqs(&mut self) {
        if self.staged.is_empty() {
            return;
        }
        let now_ns = M::now();
        let controller = self.shared.port.as_ref().map(|port| &*port.controller);
        let mut timing = lock_unpoisoned(&self.shared.timing);
        for (tag, io) in self.staged.drain(..) {
            let done_ns = timing.submit(now_ns, io, controller);
            self.service_ns[tag.0 as usize] = done_ns.saturating_sub(now_ns);
            self.busy.push(Reverse((done_ns, self.next_number, tag)));
            self.next_number += 1;
        }
    }

    fn poll(&mut self, batch: &mut CompletionBatch) {
        let before = batch.entries().len();
        let now_ns = if self.busy.is_empty() { 0 } else { M::now() };
        while let Some(Reverse((done_ns, _, tag))) = self.busy.peek().copied() {
            if done_ns > now_ns || batch.is_full() {
                batch.wake_at(done_ns);
                break;
            }
            self.busy.pop();
            batch.push(tag, Status::Ok);
        }
        self.give_back(batch.entries().len() - before);
    }

    fn timeout(&mut self, _tag: Tag) -> Expired {
        Expired::Extend
    }
}

impl Drop for ModelQueue {
    fn drop(&mut self) {
        self.give_back(self.staged.len() + self.busy.len());
    }
}
