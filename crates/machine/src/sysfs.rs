//! Reads the topology of a Linux machine from sysfs, below a root that tests can replace.
//!
//! If there are no node directories (as in some containers), all CPUs belong to one node.

use std::fs;
use std::path::Path;
use std::string::String;
use std::vec::Vec;

use crate::{Cpu, CpuId, NodeId, Topology};

/// Returns the topology below `root` (`/sys/devices/system` on a real machine), limited to the CPUs
/// in `allowed`.
#[must_use]
pub fn topology_from(root: &Path, allowed: &[CpuId]) -> Topology {
    let mut nodes: Vec<(u32, Vec<u32>)> = Vec::new();
    for entry in fs::read_dir(root.join("node")).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix("node").and_then(|n| n.parse::<u32>().ok());
        let list: Option<String> = fs::read_to_string(entry.path().join("cpulist")).ok();
        if let (Some(number), Some(list)) = (number, list) {
            nodes.push((number, parse_cpu_list(&list)));
        }
    }
    nodes.sort_unstable_by_key(|(number, _)| *number);
    let dense = |id: u32| nodes.iter().position(|(_, cpus)| cpus.contains(&id)).unwrap_or(0);
    let cpu = |id: &CpuId| Cpu { id: *id, node: NodeId(dense(id.0) as u32) };
    Topology::new(allowed.iter().map(cpu).collect())
}

/// Parses a list such as `0-3,8,10-11`, skipping malformed parts.
fn parse_cpu_list(text: &str) -> Vec<u32> {
    let mut cpus = Vec::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if let (Ok(first), Ok(last)) = (first.parse::<u32>(), last.parse::<u32>()) {
            cpus.extend(first..=last.min(first.saturating_add(4096)));
        }
    }
    cpus
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_and_single_cpus_are_read() {
        assert_eq!(parse_cpu_list("0-2,8,10-11\n"), [0, 1, 2, 8, 10, 11]);
    }

    #[test]
    fn nonsense_is_passed_over() {
        assert_eq!(parse_cpu_list("a-b,,3"), [3]);
    }

    #[test]
    fn tree_without_nodes_is_one_node() {
        let topology = topology_from(Path::new("/nonexistent"), &[CpuId(3), CpuId(1)]);
        assert_eq!(topology.nodes(), 1);
        assert_eq!(topology.index_of(CpuId(3)), 1);
    }
}
