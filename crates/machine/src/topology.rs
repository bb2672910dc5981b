//! The CPUs of a machine, and their NUMA nodes.
//!
//! Invariants: there is at least one CPU; nodes are numbered densely from 0. Kernel counterparts:
//! `cpu_to_node`, `blk_mq_map_queues`.

use alloc::vec::Vec;

use crate::{CpuId, NodeId};

/// One CPU and its NUMA node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cpu {
    /// Number of the CPU.
    pub id: CpuId,
    /// NUMA node of the CPU.
    pub node: NodeId,
}

/// The CPUs that may be used, in ascending order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Topology {
    cpus: Vec<Cpu>,
}

impl Topology {
    /// Creates a topology of these CPUs. An empty list becomes one CPU on one node.
    #[must_use]
    pub fn new(mut cpus: Vec<Cpu>) -> Self {
        if cpus.is_empty() {
            cpus.push(Cpu { id: CpuId(0), node: NodeId(0) });
        }
        cpus.sort_by_key(|cpu| cpu.id);
        Topology { cpus }
    }

    /// Creates a topology with `nodes` nodes of `cpus_per_node` CPUs each.
    #[must_use]
    pub fn uniform(nodes: u32, cpus_per_node: u32) -> Self {
        let cpu = |id| Cpu { id: CpuId(id), node: NodeId(id / cpus_per_node.max(1)) };
        Topology::new((0..nodes * cpus_per_node).map(cpu).collect())
    }

    /// Returns all CPUs, in ascending order.
    #[must_use]
    pub fn cpus(&self) -> &[Cpu] {
        &self.cpus
    }

    /// Returns the number of nodes, counted up to the highest node number.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.cpus.iter().map(|cpu| cpu.node.0 as usize + 1).max().unwrap_or(1)
    }

    /// Returns the index of a CPU in the list. An unknown CPU (hot-plugged later) is mapped to some
    /// index.
    #[must_use]
    pub fn index_of(&self, cpu: CpuId) -> usize {
        match self.cpus.binary_search_by_key(&cpu, |c| c.id) {
            Ok(index) => index,
            Err(_) => cpu.0 as usize % self.cpus.len(),
        }
    }

    /// Returns the NUMA node of a CPU.
    #[must_use]
    pub fn node_of(&self, cpu: CpuId) -> NodeId {
        self.cpus[self.index_of(cpu)].node
    }
}
