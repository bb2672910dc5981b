//! The CPUs of a machine and the NUMA nodes they belong to.
//!
//! Plain data, filled by the machine (`sysfs.rs` for `Native`) and read by the block layer when it
//! maps CPUs to software queues and those to hardware queues. Invariant: at least one CPU; nodes
//! are numbered densely from 0. Kernel counterpart: `cpu_to_node`, `blk_mq_map_queues`.

use alloc::vec::Vec;

use crate::{CpuId, NodeId};

/// One CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// Its number.
    pub id: CpuId,
    /// The node it belongs to.
    pub node: NodeId,
}

/// The CPUs that may be used, in order of their numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    cpus: Vec<Cpu>,
}

impl Topology {
    /// A topology of these CPUs; an empty list becomes one CPU on one node.
    #[must_use]
    pub fn new(mut cpus: Vec<Cpu>) -> Self {
        if cpus.is_empty() {
            cpus.push(Cpu { id: CpuId(0), node: NodeId(0) });
        }
        cpus.sort_by_key(|cpu| cpu.id);
        Topology { cpus }
    }

    /// `nodes` nodes of `cpus_per_node` CPUs each.
    #[must_use]
    pub fn uniform(nodes: u32, cpus_per_node: u32) -> Self {
        let cpu = |id| Cpu { id: CpuId(id), node: NodeId(id / cpus_per_node.max(1)) };
        Topology::new((0..nodes * cpus_per_node).map(cpu).collect())
    }

    /// All CPUs.
    #[must_use]
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Highest node number plus one.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.cpus.iter().map(|cpu| cpu.node.0 as usize + 1).max().unwrap_or(1)
    }

    /// Where a CPU stands in the list; one that is not in it (hot-plugged later) is folded onto it.
    #[must_use]
    pub fn index_of(&self, cpu: CpuId) -> usize {
        match self.cpus.binary_search_by_key(&cpu, |c| c.id) {
            Ok(index) => index,
            Err(_) => cpu.0 as usize % self.cpus.len(),
        }
    }

    /// The node of a CPU.
    #[must_use]
    pub fn node_of(&self, cpu: CpuId) -> NodeId {
        self.cpus[self.index_of(cpu)].node
    }
}
