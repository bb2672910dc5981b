//! Cache lines: the CPUs that hold a line, and the cost of each access (`Caches`).
//!
//! Each simulated word, line and lock has a `LineState`. A line is in no cache, held exclusively by
//! one CPU (dirty or not), or shared by a set of CPUs. The state is valid only in the simulation
//! with number `epoch`. In any other simulation, the line is in no cache. The fields are atomics
//! only so that `LineState` is `Sync`: within a simulation, only one system thread accesses it.
//!
//! Transfers of a line are serialised: a CPU that requests the line before `busy_until_ps` waits in
//! the line's queue (line_queue.rs). Not modelled: capacity misses, prefetching, store buffers, and
//! overlapping misses.

use core::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

use crate::memory::fabric::Fabric;
use crate::model::Model;
use crate::model::prices::{LinePrices, TransferKind};

/// Value of `holder` for a line that no cache holds.
const NOBODY: u32 = u32::MAX;
/// Bit of `holder` that is set if no other CPU holds the line.
const EXCLUSIVE: u32 = 1 << 31;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WriteKind {
    Plain,
    /// An atomic instruction, which costs more than a plain store.
    Locked,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CpuSet([u64; 4]);

impl CpuSet {
    pub(crate) fn add(&mut self, cpu: usize) {
        self.0[cpu >> 6] |= 1 << (cpu & 63);
    }

    pub(crate) fn remove(&mut self, cpu: usize) {
        self.0[cpu >> 6] &= !(1 << (cpu & 63));
    }

    pub(crate) fn has(&self, cpu: usize) -> bool {
        self.0[cpu >> 6] & (1 << (cpu & 63)) != 0
    }

    fn has_any(&self, first: usize, count: usize) -> bool {
        let (mut cpu, end) = (first, first + count);
        while cpu < end {
            let bits = (64 - (cpu & 63)).min(end - cpu);
            let mask = (u64::MAX >> (64 - bits)) << (cpu & 63);
            if self.0[cpu >> 6] & mask != 0 {
                return true;
            }
            cpu += bits;
        }
        false
    }
}

#[derive(Debug)]
pub(crate) struct LineState {
    /// Number of the simulation to which the other fields belong.
    epoch: AtomicU32,
    /// CPU that fetched the line last, with the `EXCLUSIVE` bit.
    holder: AtomicU32,
    /// Index in `World::watches` plus 1; 0 if no thread has waited for a write to the line.
    pub(crate) watch: AtomicU32,
    /// Index in `World::line_queues` plus 1; 0 if no thread has waited to access the line.
    pub(crate) queue: AtomicU32,
    busy_until_ps: AtomicU64,
    /// CPUs that share the line. Unused while one CPU holds it exclusively.
    sharers: [AtomicU64; 4],
}

impl LineState {
    pub(crate) const fn new() -> Self {
        LineState {
            epoch: AtomicU32::new(0),
            holder: AtomicU32::new(NOBODY),
            watch: AtomicU32::new(0),
            queue: AtomicU32::new(0),
            busy_until_ps: AtomicU64::new(0),
            sharers: [const { AtomicU64::new(0) }; 4],
        }
    }

    #[inline]
    pub(crate) fn renew(&self, epoch: u32) {
        if self.epoch.load(Relaxed) != epoch {
            self.epoch.store(epoch, Relaxed);
            self.holder.store(NOBODY, Relaxed);
            self.watch.store(0, Relaxed);
            self.queue.store(0, Relaxed);
            self.busy_until_ps.store(0, Relaxed);
            self.set_sharers(CpuSet::default());
        }
    }

    #[inline]
    pub(crate) fn busy_until_ps(&self) -> u64 {
        self.busy_until_ps.load(Relaxed)
    }

    pub(crate) fn last_holder(&self) -> Option<usize> {
        let holder = self.holder.load(Relaxed);
        (holder != NOBODY).then_some((holder & !EXCLUSIVE) as usize)
    }

    #[inline]
    pub(crate) fn is_only_in(&self, cpu: usize) -> bool {
        self.holder.load(Relaxed) == cpu as u32 | EXCLUSIVE
    }

    #[inline]
    pub(crate) fn is_shared_by(&self, cpu: usize) -> bool {
        let holder = self.holder.load(Relaxed);
        holder != NOBODY && holder & EXCLUSIVE == 0 && self.sharers().has(cpu)
    }

    #[inline]
    fn sharers(&self) -> CpuSet {
        let [a, b, c, d] = &self.sharers;
        CpuSet([a.load(Relaxed), b.load(Relaxed), c.load(Relaxed), d.load(Relaxed)])
    }

    #[inline]
    fn set_sharers(&self, set: CpuSet) {
        self.sharers.iter().zip(set.0).for_each(|(word, bits)| word.store(bits, Relaxed));
    }

    /// Marks the line as shared by the CPUs in `set`. `holder` is the CPU that fetched the line
    /// last. The line is in transfer until `busy_until_ps`.
    pub(crate) fn share(&self, set: CpuSet, holder: usize, busy_until_ps: u64) {
        self.set_sharers(set);
        self.holder.store(holder as u32, Relaxed);
        self.busy_until_ps.store(busy_until_ps, Relaxed);
    }
}

#[derive(Debug, Clone, Copy)]
pub(crate) struct LineAccess {
    pub(crate) cpu: usize,
    pub(crate) now_ps: u64,
    pub(crate) lines: u64,
}

#[derive(Debug)]
pub(crate) struct Caches {
    pub(crate) fabric: Fabric,
    /// If true, CPUs that request a line at the same time get it one after the other. If false, no
    /// CPU waits for another CPU's transfer.
    pub(crate) queueing: bool,
    prices: LinePrices,
}

impl Caches {
    pub(crate) fn new(model: &Model) -> Self {
        let prices = LinePrices::new(&model.cache, &model.cpu);
        Caches { fabric: Fabric::new(model), queueing: model.cache.queueing, prices }
    }

    /// Reads a line and returns the time at which the CPU has it, in picoseconds.
    #[inline]
    pub(crate) fn read(&mut self, line: &LineState, access: LineAccess) -> u64 {
        let LineAccess { cpu, now_ps, lines } = access;
        let holder = line.holder.load(Relaxed);
        let exclusive = holder != NOBODY && holder & EXCLUSIVE != 0;
        let mut sharers = line.sharers();
        if holder == cpu as u32 | EXCLUSIVE || !exclusive && sharers.has(cpu) {
            return now_ps + self.prices.l1 * lines;
        }
        let source = holder & !EXCLUSIVE;
        let wanted = if exclusive { TransferKind::Load } else { TransferKind::Shared };
        if exclusive {
            sharers = CpuSet::default();
            sharers.add(source as usize);
        }
        let from = (holder != NOBODY).then(|| self.nearest(&sharers, source as usize, cpu));
        let end_ps = self.fetch(line, from, access, wanted);
        sharers.add(cpu);
        line.share(sharers, cpu, end_ps);
        end_ps
    }

    /// Writes a line and returns the time at which the write is done, in picoseconds.
    #[inline]
    pub(crate) fn write(
        &mut self,
        line: &LineState,
        access: LineAccess,
        written: WriteKind,
    ) -> u64 {
        let mine = access.cpu as u32 | EXCLUSIVE;
        let holder = line.holder.load(Relaxed);
        let moved = match holder == mine {
            true => None,
            false => self.invalidate(line, holder, access, written),
        };
        let end_ps = moved.unwrap_or_else(|| {
            let locked = if written == WriteKind::Locked { self.prices.locked } else { 0 };
            access.now_ps + self.prices.l1 * access.lines + locked
        });
        line.holder.store(mine, Relaxed);
        line.busy_until_ps.store(end_ps, Relaxed);
        end_ps
    }

    /// Invalidates the line in all other caches. Returns the time when this is complete in the
    /// farthest cache, or `None` if no other cache has the line.
    fn invalidate(
        &mut self,
        line: &LineState,
        holder: u32,
        access: LineAccess,
        written: WriteKind,
    ) -> Option<u64> {
        let wanted = match written {
            WriteKind::Plain => TransferKind::Store,
            WriteKind::Locked => TransferKind::Atomic,
        };
        let from = if holder == NOBODY {
            None
        } else if holder & EXCLUSIVE != 0 {
            Some(self.fabric.socket_of((holder & !EXCLUSIVE) as usize))
        } else {
            let mut others = line.sharers();
            others.remove(access.cpu);
            Some(self.farthest(&others, access.cpu, wanted)?)
        };
        Some(self.fetch(line, from, access, wanted))
    }

    /// Returns the socket that supplies a shared line to `cpu`. If a CPU of the same socket has the
    /// line, returns the socket of `cpu`. Otherwise, returns the socket of `last`, the CPU that
    /// fetched the line last.
    fn nearest(&self, sharers: &CpuSet, last: usize, cpu: usize) -> usize {
        let here = self.fabric.socket_of(cpu);
        let (first, count) = self.fabric.cpus_of(here);
        if sharers.has_any(first, count) { here } else { self.fabric.socket_of(last) }
    }

    fn farthest(&self, set: &CpuSet, cpu: usize, wanted: TransferKind) -> Option<usize> {
        let here = self.fabric.socket_of(cpu);
        let holds = |socket: &usize| {
            let (first, count) = self.fabric.cpus_of(*socket);
            set.has_any(first, count)
        };
        let sockets = (0..self.fabric.sockets()).filter(holds);
        sockets.max_by_key(|socket| self.fabric.transfer_ps(*socket, here, wanted))
    }

    /// Transfers a line from a socket (or from memory) to a CPU, and returns the time of arrival.
    fn fetch(
        &mut self,
        line: &LineState,
        from: Option<usize>,
        access: LineAccess,
        wanted: TransferKind,
    ) -> u64 {
        let LineAccess { cpu, now_ps, lines } = access;
        let here = self.fabric.socket_of(cpu);
        let takes_ps = match (from, wanted) {
            (Some(socket), _) => self.fabric.send(now_ps, (socket, here), lines, wanted),
            (None, TransferKind::Atomic) => self.prices.memory * lines + self.prices.locked,
            (None, _) => self.prices.memory * lines,
        };
        let free_ps = if self.queueing { line.busy_until_ps.load(Relaxed) } else { 0 };
        let end_ps = now_ps.max(free_ps) + takes_ps;
        line.busy_until_ps.store(end_ps, Relaxed);
        end_ps
    }
}

#[cfg(test)]
mod tests {
    use super::CpuSet;

    #[test]
    fn set_finds_cpus_across_its_words() {
        let mut set = CpuSet::default();
        set.add(70);
        assert!(set.has_any(60, 11) && !set.has_any(60, 10) && !set.has_any(71, 100));
        assert!(set.has_any(0, 256));
        set.remove(70);
        assert_eq!(set, CpuSet::default());
    }
}
