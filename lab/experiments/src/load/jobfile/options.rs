//! The words of job files: which mean something here, which say nothing, which are refused.
//!
//! Owns the three lists and the other names of words. A word of the second list is about how fio
//! itself does something (its engines, files, processes, logs) and is passed over with a note; one
//! of the third would change what I/Os are done, so that passing over it would be wrong. Called by
//! `spec`, and by the command line for its notes.

use millrace_drives::nearest;

/// What a word is here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Use {
    /// It means what it means to fio.
    Meaning,
    /// Words of fio that say nothing to millrace: accepted, with a note.
    Nothing,
}

/// Other names of words.
const ALIASES: [(&str, &str); 16] = [
    ("readwrite", "rw"),
    ("blocksize", "bs"),
    ("blocksize_range", "bsrange"),
    ("io_limit", "io_size"),
    ("iodepth_batch", "iodepth_batch_submit"),
    ("iodepth_batch_complete", "iodepth_batch_complete_min"),
    ("wait_for_previous", "stonewall"),
    ("file_offset", "offset"),
    ("bs_unaligned", "blocksize_unaligned"),
    ("ba", "blockalign"),
    ("iomem", "mem"),
    ("mem_align", "iomem_align"),
    ("buffer_pattern", "verify_pattern"),
    ("disable_bw", "disable_bw_measurement"),
    ("ss", "steadystate"),
    ("timeout", "runtime"),
];

/// Words with a meaning.
pub(super) const MEANING: [&str; 52] = [
    "allrandrepeat",
    "bs",
    "bsrange",
    "bssplit",
    "buffered",
    "cpus_allowed",
    "description",
    "direct",
    "directory",
    "do_verify",
    "end_fsync",
    "fadvise_hint",
    "fdatasync",
    "filename",
    "filesize",
    "fsync",
    "group_reporting",
    "invalidate",
    "io_size",
    "iodepth",
    "iodepth_batch_submit",
    "ioengine",
    "kb_base",
    "loops",
    "name",
    "new_group",
    "norandommap",
    "number_ios",
    "numjobs",
    "offset",
    "offset_increment",
    "percentage_random",
    "ramp_time",
    "random_distribution",
    "randrepeat",
    "randseed",
    "rate",
    "rate_iops",
    "rate_process",
    "runtime",
    "rw",
    "rwmixread",
    "rwmixwrite",
    "size",
    "startdelay",
    "stonewall",
    "thinktime",
    "thinktime_blocks",
    "thinktime_spin",
    "time_based",
    "unlink",
    "verify",
];

/// Words that are passed over with a note.
pub(super) const NOTHING: [&str; 65] = [
    "allow_file_create",
    "allow_mounted_write",
    "bwavgtime",
    "clat_percentiles",
    "clocksource",
    "continue_on_error",
    "cpus_allowed_policy",
    "create_fsync",
    "create_on_open",
    "create_serialize",
    "disable_bw_measurement",
    "disable_clat",
    "disable_lat",
    "disable_slat",
    "disk_util",
    "error_dump",
    "exitall",
    "exitall_on_error",
    "fallocate",
    "file_service_type",
    "fixedbufs",
    "fsync_on_close",
    "gtod_cpu",
    "gtod_reduce",
    "hipri",
    "hugepage-size",
    "iodepth_batch_complete_max",
    "iodepth_batch_complete_min",
    "iodepth_low",
    "iomem_align",
    "ioprio",
    "iopsavgtime",
    "ioscheduler",
    "lat_percentiles",
    "lockmem",
    "log_avg_msec",
    "log_unix_epoch",
    "mem",
    "nice",
    "numa_cpu_nodes",
    "numa_mem_policy",
    "openfiles",
    "overwrite",
    "percentile_list",
    "per_job_logs",
    "pre_read",
    "prio",
    "prioclass",
    "random_generator",
    "refill_buffers",
    "registerfiles",
    "scramble_buffers",
    "significant_figures",
    "slat_percentiles",
    "softrandommap",
    "sqthread_poll",
    "thread",
    "unified_rw_reporting",
    "unit_base",
    "userspace_reap",
    "verify_dump",
    "verify_fatal",
    "verify_state_save",
    "write_hint",
    "zero_buffers",
];

/// fio's words for I/Os that are not made here.
pub(super) const REFUSED: [&str; 62] = [
    "atomic",
    "blockalign",
    "blocksize_unaligned",
    "bs_is_seq_rand",
    "buffer_compress_percentage",
    "cmdprio_percentage",
    "dedupe_percentage",
    "create_only",
    "experimental_verify",
    "file_append",
    "filename_format",
    "fill_device",
    "flow",
    "flow_id",
    "ignore_error",
    "io_submit_mode",
    "latency_percentile",
    "latency_target",
    "latency_window",
    "max_latency",
    "max_open_zones",
    "merge_blktrace_file",
    "nowait",
    "nrfiles",
    "offset_align",
    "opendir",
    "rate_cycle",
    "rate_ignore_thinktime",
    "rate_iops_min",
    "rate_min",
    "read_iolog",
    "replay_align",
    "replay_no_stall",
    "replay_redirect",
    "replay_scale",
    "replay_skip",
    "replay_time_scale",
    "rw_sequencer",
    "serialize_overlap",
    "steadystate",
    "steadystate_duration",
    "sync",
    "sync_file_range",
    "thinktime_blocks_type",
    "thinktime_iotime",
    "trim_backlog",
    "trim_percentage",
    "trim_verify_zero",
    "unlink_each_loop",
    "verify_async",
    "verify_backlog",
    "verify_interval",
    "verify_offset",
    "verify_only",
    "verify_pattern",
    "verify_state_load",
    "wait_for",
    "write_barrier",
    "write_bw_log",
    "write_iolog",
    "write_lat_log",
    "zonemode",
];

/// The usual name of a word.
pub(super) fn usual(word: &str) -> &str {
    ALIASES.iter().find(|(alias, _)| *alias == word).map_or(word, |(_, name)| name)
}

/// What a word is, by its usual name.
///
/// # Errors
/// If it is refused, or no word of fio's that is known here.
pub(super) fn use_of(word: &str) -> Result<Use, String> {
    if MEANING.contains(&word) {
        return Ok(Use::Meaning);
    }
    if NOTHING.contains(&word) {
        return Ok(Use::Nothing);
    }
    if REFUSED.contains(&word) {
        return Err(format!(
            "{word}: fio has this word, but such I/O is not made here; leave it out"
        ));
    }
    let all = MEANING.iter().chain(&NOTHING).copied().chain(ALIASES.iter().map(|(name, _)| *name));
    let near = nearest(word, all);
    let near = near.map_or_else(String::new, |name| format!("; did you mean {name}?"));
    Err(format!("{word}: no word of job files that is known here{near}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_word_is_in_two_lists_and_each_other_name_leads_to_one() {
        let mut all: Vec<&str> = MEANING.iter().chain(&NOTHING).chain(&REFUSED).copied().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        for (alias, name) in ALIASES {
            assert!(all.contains(&name), "{alias} leads to {name}");
        }
    }

    #[test]
    fn a_misspelt_word_names_the_nearest() {
        assert_eq!(use_of(usual("readwrite")), Ok(Use::Meaning));
        assert_eq!(use_of("thread"), Ok(Use::Nothing));
        let said = |word| use_of(word).unwrap_err();
        assert_eq!(
            said("time_baed"),
            "time_baed: no word of job files that is known here; did you mean time_based?"
        );
        assert!(said("verify_backlog").starts_with("verify_backlog: fio has this word"));
    }
}
