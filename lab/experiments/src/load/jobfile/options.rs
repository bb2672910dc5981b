//! Options of fio's job files that millrace ignores or refuses, and aliases of all options.
//!
//! Options that concern only fio itself (its engines, files, processes, logs) or the content of
//! buffers are ignored with a note. Options that would change the I/Os are refused, except with the
//! value that changes nothing. `draft` calls this file; `words` has the options that millrace
//! supports.

use millrace_drives::nearest;

/// An option of fio that would change the I/Os in a way that millrace does not support.
pub(super) struct Refused {
    pub(super) word: &'static str,
    /// Value that is accepted because fio does the same I/O without the option; empty if there is
    /// no such value.
    plain: &'static str,
    remedy: &'static str,
}

const fn without(word: &'static str, plain: &'static str) -> Refused {
    Refused { word, plain, remedy: "remove this option" }
}

const fn instead(word: &'static str, plain: &'static str, remedy: &'static str) -> Refused {
    Refused { word, plain, remedy }
}

const ALIASES: &str = "\
    readwrite=rw blocksize=bs blocksize_range=bsrange io_limit=io_size \
    iodepth_batch=iodepth_batch_submit iodepth_batch_complete=iodepth_batch_complete_min \
    wait_for_previous=stonewall file_offset=offset bs_unaligned=blocksize_unaligned \
    ba=blockalign iomem=mem mem_align=iomem_align disable_bw=disable_bw_measurement \
    ss=steadystate ss_dur=steadystate_duration ss_ramp=steadystate_ramp_time \
    steadystate_ramp=steadystate_ramp_time timeout=runtime ratemin=rate_min ratecycle=rate_cycle \
    nr_files=nrfiles fill_fs=fill_device dedup_percentage=dedupe_percentage threads=thread";

pub(super) const NOTHING: &str = "\
    allow_file_create allow_mounted_write block_error_percentiles buffer_compress_chunk \
    buffer_compress_percentage buffer_pattern bwavgtime clat_percentiles clocksource cmdprio \
    cmdprio_bssplit cmdprio_class cmdprio_hint cmdprio_percentage continue_on_error \
    cpus_allowed_policy create_fsync create_on_open create_serialize dedupe_global dedupe_mode \
    dedupe_percentage dedupe_working_set_percentage disable_bw_measurement disable_clat \
    disable_lat disable_slat disk_util error_dump exit_what exitall exitall_on_error \
    experimental_verify fallocate file_service_type fixedbufs force_async fsync_on_close \
    gtod_cpu gtod_reduce hipri hugepage-size ignore_error ignore_zone_limits io_submit_mode \
    iodepth_batch_complete_max iodepth_batch_complete_min iodepth_low iomem_align ioprio \
    iopsavgtime ioscheduler job_max_open_zones lat_percentiles lockfile lockmem \
    log_alternate_epoch log_alternate_epoch_clock_id log_avg_msec log_compression \
    log_compression_cpus log_entries log_hist_coarseness log_hist_msec log_max_value log_offset \
    log_prio log_store_compressed log_unix_epoch log_window_value max_latency max_open_zones mem \
    merge_blktrace_iters merge_blktrace_scalars nice nonvectored numa_cpu_nodes numa_mem_policy \
    openfiles overwrite per_job_logs pre_read prio prioclass random_generator rate_cycle \
    rate_iops_min rate_min read_beyond_wp read_iolog_chunked refill_buffers registerfiles \
    replay_align replay_no_stall replay_redirect replay_scale replay_skip replay_time_scale \
    scramble_buffers significant_figures slat_percentiles softrandommap sqthread_poll \
    sqthread_poll_cpu stats steadystate steadystate_check_interval steadystate_duration \
    steadystate_ramp_time thinktime_blocks_type thread trim_backlog_batch trim_verify_zero \
    uncached unified_rw_reporting unique_filename unit_base userspace_reap verify_async \
    verify_backlog verify_backlog_batch verify_dump verify_fatal verify_interval verify_offset \
    verify_pattern verify_state_save write_bw_log write_hint write_hist_log write_iolog \
    write_iops_log write_lat_log zero_buffers zone_reset_frequency zone_reset_threshold \
    zonecapacity";

pub(super) const REFUSED: [Refused; 31] = [
    without("atomic", "0"),
    without("blocksize_unaligned", "0"),
    instead("bs_is_seq_rand", "0", "write bs=READ,WRITE, or bssplit"),
    instead("cgroup", "", "remove this option, and start millrace-lab in the cgroup"),
    without("cgroup_nodelete", "0"),
    instead(
        "cgroup_weight",
        "",
        "remove this option, and start millrace-lab in a cgroup of this weight",
    ),
    instead("create_only", "0", "files are created when their jobs begin; remove this option"),
    instead(
        "exec_postrun",
        "",
        "remove this option, and run its command when millrace-lab has ended",
    ),
    instead(
        "exec_prerun",
        "",
        "remove this option, and run its command before you start millrace-lab",
    ),
    instead("file_append", "0", "set offset to the size of the file"),
    instead("filename_format", "", "name the file with filename"),
    instead("gid", "", "remove this option, and start millrace-lab with this group ID"),
    instead("merge_blktrace_file", "", "replay traces with millrace-lab replay"),
    without("nowait", "0"),
    instead("nrfiles", "1", "write a job for each file"),
    instead("opendir", "", "write a job for each file"),
    instead("profile", "", "write the profile's jobs"),
    without("rate_ignore_thinktime", "0"),
    instead("read_iolog", "", "replay traces with millrace-lab replay"),
    without("rw_sequencer", "sequential"),
    without("serialize_overlap", "0"),
    instead("sync", "0", "write fsync=1"),
    instead("sync_file_range", "", "write fdatasync=N"),
    without("thinktime_iotime", "0"),
    without("trim_backlog", "0"),
    without("trim_percentage", "0"),
    instead("uid", "", "remove this option, and start millrace-lab with this user ID"),
    without("unlink_each_loop", "0"),
    instead(
        "verify_only",
        "0",
        "blocks are checked by the job that wrote them; remove this option",
    ),
    instead(
        "verify_state_load",
        "0",
        "blocks are checked by the job that wrote them; remove this option",
    ),
    instead("write_barrier", "0", "write fsync=N"),
];

fn aliases() -> impl Iterator<Item = (&'static str, &'static str)> {
    ALIASES.split(' ').filter_map(|pair| pair.split_once('='))
}

pub(super) fn usual(word: &str) -> &str {
    aliases().find(|(alias, _)| *alias == word).map_or(word, |(_, name)| name)
}

/// Checks an option that is not in `meaning`, the list of supported options. Accepts the option if
/// millrace ignores it, or if its value does not change fio's I/O. Otherwise, returns an error. For
/// an unknown option, the error suggests the nearest name.
pub(super) fn pass_over(
    word: &str,
    value: &str,
    meaning: impl Iterator<Item = &'static str>,
) -> Result<(), String> {
    if NOTHING.split(' ').any(|known| known == word) {
        return Ok(());
    }
    if let Some(refused) = REFUSED.iter().find(|refused| refused.word == word) {
        return match value == refused.plain && !value.is_empty() {
            true => Ok(()),
            false => Err(format!("{word}: this fio option is not supported; {}", refused.remedy)),
        };
    }
    let all = meaning.chain(NOTHING.split(' ')).chain(aliases().map(|(name, _)| name));
    let near = nearest(word, all);
    let near = near.map_or_else(String::new, |name| format!("; did you mean {name}?"));
    Err(format!("{word}: unknown job file option{near}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::jobfile::words::WORDS;

    fn meaning() -> impl Iterator<Item = &'static str> {
        WORDS.iter().map(|word| word.name)
    }

    #[test]
    fn no_word_is_in_two_lists_and_each_other_name_leads_to_one() {
        let refused = REFUSED.iter().map(|refused| refused.word);
        let mut all: Vec<&str> = meaning().chain(NOTHING.split(' ')).chain(refused).collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count);
        for (alias, name) in aliases() {
            assert!(all.contains(&name), "{alias} leads to {name}");
            assert!(!all.contains(&alias), "{alias} is a word itself");
        }
    }

    #[test]
    fn a_misspelt_word_names_the_nearest() {
        assert_eq!(usual("readwrite"), "rw");
        assert_eq!(pass_over("thread", "", meaning()), Ok(()));
        let said = |word| pass_over(word, "1", meaning()).unwrap_err();
        assert_eq!(
            said("time_baed"),
            "time_baed: unknown job file option; did you mean time_based?"
        );
        assert!(said("verify_only").starts_with("verify_only: this fio option is not supported"));
    }

    #[test]
    fn refused_word_is_passed_over_with_value_that_changes_nothing() {
        for refused in &REFUSED {
            let Refused { word, plain, .. } = refused;
            assert_eq!(
                pass_over(word, plain, meaning()).is_ok(),
                !plain.is_empty(),
                "{word}={plain}"
            );
            let said = pass_over(word, "17", meaning()).unwrap_err();
            assert!(said.starts_with(word) && said.ends_with(refused.remedy), "{said}");
        }
    }
}
