//! Detects a drive's file that has disappeared although its volume has data.
//!
//! A missing file with a configured size is created. But if other drives of its volume have been
//! written, the file was lost or its file system is not mounted, and an empty file in its place
//! would be served as zeroes. So a start, a reload and `--check` look for such files before any
//! drive is opened.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use millrace::VolumeConfig;
use millrace_block::Layout;

use crate::config::{ConfigProblems, KeyLines, ServePlan};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileState {
    Missing,
    /// The file exists, but no byte was ever written to it.
    Fresh,
    Written,
}

fn state_of(path: &Path) -> FileState {
    match fs::metadata(path) {
        Ok(meta) if meta.file_type().is_block_device() || meta.blocks() > 0 => FileState::Written,
        Ok(meta) if meta.len() > 0 => FileState::Fresh,
        _ => FileState::Missing,
    }
}

/// Returns the index of a drive whose file was lost, and the index of a drive that has data. In a
/// linear volume, a missing file after the last drive with data is new, not lost. In a stripe,
/// every missing file was lost.
fn lost(states: &[Option<FileState>], layout: Layout) -> Option<(usize, usize)> {
    let written = |at: &usize| states[*at] == Some(FileState::Written);
    let missing = |at: &usize| states[*at] == Some(FileState::Missing);
    let last = (0..states.len()).rev().find(written)?;
    let until = if matches!(layout, Layout::Linear) { last } else { states.len() };
    (0..until).find(missing).map(|at| (at, last))
}

pub fn check(plan: &ServePlan) -> Result<(), ConfigProblems> {
    let mut lines = plan.lines.drives.as_slice();
    plan.config.volumes.iter().try_for_each(|volume| {
        let (own, rest) = lines.split_at(volume.drives.len());
        lines = rest;
        check_volume(plan, volume, own)
    })
}

fn check_volume(
    plan: &ServePlan,
    volume: &VolumeConfig,
    lines: &[KeyLines],
) -> Result<(), ConfigProblems> {
    let drives = &volume.drives;
    // A missing file counts as lost only if another drive of the volume has data, so a volume with
    // a single drive passes.
    if drives.len() < 2 {
        return Ok(());
    }
    let files: Vec<_> = drives.iter().map(|drive| drive.spec.file()).collect();
    let states: Vec<_> = files.iter().map(|file| file.as_deref().map(state_of)).collect();
    let Some((at, written)) = lost(&states, volume.layout) else { return Ok(()) };
    let Some(file) = &files[at] else { return Ok(()) };
    let (name, other) = (&drives[at].name, &drives[written].name);
    let text = format!(
        "drive {name}: {}: this file is missing or empty, but drive {other} of volume {} has data; \
         put the file back, or mount its file system; to begin with an empty volume, remove the \
         files of its other drives, too",
        file.display(),
        volume.name
    );
    Err(plan.problem(lines[at].at("path"), text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn missing_member_is_new_only_if_no_written_data_need_it() {
        use FileState::{Fresh, Missing, Written};
        const STRIPE: Layout = Layout::Stripe { chunk_sectors: 128 };
        let lost = |states: &[FileState], layout| {
            let states: Vec<_> = states.iter().copied().map(Some).collect();
            lost(&states, layout)
        };
        for layout in [STRIPE, Layout::Linear] {
            assert_eq!(lost(&[Missing, Missing], layout), None, "the first start");
            assert_eq!(lost(&[Fresh, Missing], layout), None, "one that was cut short");
            assert_eq!(lost(&[Written, Fresh, Written], layout), None);
            assert_eq!(lost(&[Missing, Written], layout), Some((0, 1)));
        }
        assert_eq!(lost(&[Written, Missing], STRIPE), Some((1, 0)));
        assert_eq!(lost(&[Written, Missing], Layout::Linear), None, "one more at the end");
        assert_eq!(super::lost(&[None, Some(Missing)], STRIPE), None, "memory beside it");
    }
}
