//! `Graph`: PageRank over a graph with its vertices in memory and its edges on the volume.
//!
//! Vertices and their ranks are in memory. A file holds the edges, four bytes each, sorted by their
//! source vertex. Each pass reads every vertex's list of edges in the order of the file. A page
//! that two lists share is read once. Since few vertices have many edges, most reads are small and
//! a few are large. The computation for an edge is not modelled: engines have other threads for the
//! computation.
//!
//! The graph is R-MAT with a = 0.57, b = 0.19, c = 0.19 and d = 0.05 (Chakrabarti, Zhan, Faloutsos,
//! SDM 2004, with Graph500's parameters), 2^18 vertices and 32 edges for each.

use std::sync::Arc;

use millrace_block::Op;
use millrace_cache::CacheConfig;
use millrace_random::SplitMix64 as Random;

use crate::simulation::Host;
use crate::simulation::program::{Access, PAGE_SECTORS, Program};

/// Binary logarithm of the number of vertices, and number of edges per vertex.
const SCALE: u32 = 18;
const EDGES_EACH: u64 = 32;
const EDGE_BYTES: u64 = 4;
/// Probability, in 1/65,536, that the source of an edge is in the first half of the vertices: the
/// sum of R-MAT's parameters a = 0.57 and b = 0.19.
const UPPER: u64 = 49_807;
const READ_PAGES_MAX: u64 = 256;
/// Number of pages read in the warm-up, and virtual length of the measured window.
const WARM_PAGES: u64 = 8_192;
const LENGTH_NS: u64 = 100_000_000;

#[derive(Debug, Clone)]
pub(super) struct Graph {
    reads: Arc<[(u64, u64)]>,
    threads: u32,
}

impl Graph {
    pub(super) fn new(seed: u64, threads: u32) -> Graph {
        Graph { reads: reads_of(&degrees(seed)).into(), threads }
    }
}

fn degrees(seed: u64) -> Vec<u32> {
    let mut random = Random::new(seed);
    let mut degrees = vec![0; 1 << SCALE];
    for _ in 0..EDGES_EACH << SCALE {
        let (mut source, mut bits) = (0usize, 0);
        for level in 0..SCALE {
            if level % 4 == 0 {
                bits = random.next();
            }
            source = 2 * source + usize::from(bits & 0xffff >= UPPER);
            bits >>= 16;
        }
        degrees[source] += 1;
    }
    degrees
}

fn reads_of(degrees: &[u32]) -> Vec<(u64, u64)> {
    let (mut reads, mut byte, mut page) = (Vec::new(), 0, 0);
    for degree in degrees {
        byte += u64::from(*degree) * EDGE_BYTES;
        let end = byte.div_ceil(4096);
        while page < end {
            let pages = READ_PAGES_MAX.min(end - page);
            reads.push((page, pages));
            page += pages;
        }
    }
    reads
}

impl Program for Graph {
    fn cache(&self) -> Option<CacheConfig> {
        None
    }

    fn measured(&self) -> (u64, u64) {
        (WARM_PAGES, LENGTH_NS)
    }

    fn run<M: Host>(&self, number: u32, access: &mut Access<'_, M>) {
        let share = self.reads.len() / self.threads as usize;
        let mine = &self.reads[number as usize * share..][..share];
        let depth = access.depth() as usize;
        let (mut next, mut room) = (mine.iter().cycle(), depth);
        while !access.is_over() {
            // Submit in batches of at least `depth / 2` reads: `reap` waits for that many
            // completions.
            access.direct(room as u32);
            for (page, pages) in next.by_ref().take(room) {
                access.submit(Op::Read, (page * PAGE_SECTORS, pages * PAGE_SECTORS));
                access.count(*pages);
            }
            room = access.reap(depth / 2);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn degrees_follow_r_mat_and_a_pass_reads_each_page_once() {
        let degrees = degrees(1);
        let edges: u64 = degrees.iter().map(|degree| u64::from(*degree)).sum();
        assert_eq!(edges, EDGES_EACH << SCALE);
        // The first vertex has (a + b)^18 of all edges.
        let hub = (UPPER as f64 / 65_536.0).powi(SCALE as i32) * edges as f64;
        assert!((f64::from(degrees[0]) / hub - 1.0).abs() < 0.05, "{} {hub}", degrees[0]);
        let reads = reads_of(&degrees);
        assert!(reads.windows(2).all(|two| two[0].0 + two[0].1 == two[1].0));
        let last = reads[reads.len() - 1];
        assert_eq!((reads[0].0, last.0 + last.1), (0, edges * EDGE_BYTES / 4096));
        let small = reads.iter().filter(|read| read.1 == 1).count();
        assert!(small * 10 > reads.len() * 8, "{small} of {}", reads.len());
    }
}
