//! `cost` of a `[[drive]]`: what the drive does in a second, for schedulers that share by cost.
//!
//! Called by sections.rs. The keys are rates, as io.cost's model has them, since those are what
//! data sheets state and `millrace-lab bench --calibrate` measures; the block layer makes costs of
//! them.

use millrace::{CostModel, OpCost, OpRates};

use super::document::{Located, Section};
use super::problem::Problems;
use super::words;

/// Keys of one direction: I/Os of 4 KiB at random places and in a row, bytes.
type Keys = [&'static str; 3];

const READ: Keys = ["read-iops", "read-sequential-iops", "read-bandwidth"];
const WRITE: Keys = ["write-iops", "write-sequential-iops", "write-bandwidth"];

/// Takes the key out of a drive's section.
pub fn read(drive: &mut Section<'_>, problems: &mut Problems) -> Option<CostModel> {
    let mut section = drive.table("cost", problems)?;
    let missing: Vec<&str> = [READ[0], READ[2], WRITE[0], WRITE[2]]
        .into_iter()
        .filter(|key| !section.has(key))
        .collect();
    let read = rates(&mut section, READ, problems);
    let write = rates(&mut section, WRITE, problems);
    if !missing.is_empty() {
        let text = format!(
            "add {}; millrace-lab bench --calibrate DRIVE measures and prints them",
            missing.join(", ")
        );
        section.missing(&text, problems);
    }
    section.finish(problems);
    Some(CostModel { read: OpCost::of_rates(&read?), write: OpCost::of_rates(&write?) })
}

fn rates(section: &mut Section<'_>, keys: Keys, problems: &mut Problems) -> Option<OpRates> {
    let random = section.word(keys[0], problems, iops);
    let sequential = section.word(keys[1], problems, iops);
    let bytes = section.word(keys[2], problems, bandwidth);
    let random_iops = random?.value;
    Some(OpRates {
        random_iops,
        sequential_iops: sequential.map_or(random_iops, |iops: Located<u64>| iops.value),
        bytes_per_s: bytes?.value,
    })
}

/// I/Os a second.
fn iops(text: &str) -> Result<u64, String> {
    match words::count(text)? {
        number @ 1..=1_000_000_000 => Ok(number),
        _ => Err("write I/Os a second, from 1 to 1000m".to_owned()),
    }
}

/// Bytes a second.
fn bandwidth(text: &str) -> Result<u64, String> {
    match words::rate_bytes_per_s(text)? {
        bytes @ 4096..=0x4_0000_0000_0000 => Ok(bytes),
        _ => Err("write the bytes of a second, from 4k to 1024t".to_owned()),
    }
}
