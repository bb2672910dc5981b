//! Checks the counts, that nothing is lost while slots grow, and that hostile I/Os cost nothing.

use super::*;

fn io(at_ns: u64, op: Op, offset_bytes: u64, len_bytes: u64) -> TraceIo {
    let latency_ns = (op == Op::Read).then_some(1_000);
    TraceIo { at_ns, device: 0, op, fua: false, offset_bytes, len_bytes, latency_ns }
}

#[test]
fn sizes_strides_mix_and_working_set_are_counted() {
    let mut profile = TraceProfile::default();
    for io in [
        io(0, Op::Read, 0, 4_096),
        io(1_000, Op::Read, 4_096, 8_192),
        io(2_000, Op::Write, 1 << 20, 4_096),
        io(3_000, Op::Write, 0, 512),
        io(1_000_000_000, Op::Flush, 0, 0),
    ] {
        profile.add(&io);
    }
    let devices = ["sda".to_owned()];
    let json = profile.json(&devices);
    assert_eq!(json["ops"]["read"]["bytes"], 12_288);
    assert_eq!(json["ops"]["read"]["latency"]["p99_ns"], 1_000);
    assert_eq!(json["ops"]["flush"]["ios"], 1);
    assert_eq!(json["size_bytes"]["read"], serde_json::json!({ "4096": 1, "8192": 1 }));
    assert_eq!(json["size_bytes"]["write"], serde_json::json!({ "4096": 1, "512": 1 }));
    // 12,288 to 1 MiB forward; from 1 MiB + 4,096 back to 0.
    let strides = serde_json::json!({
        "sequential": 1, "forward": { "524288": 1 }, "backward": { "1048576": 1 }
    });
    assert_eq!(json["stride_bytes"], strides);
    let touched = serde_json::json!({
        "all": 4 * 4_096, "read": 3 * 4_096, "written": 2 * 4_096, "error": 0.0081
    });
    assert_eq!(json["working_set_bytes"], touched);
    let text = profile.text(&devices);
    for part in ["4 KiB", "1.000000 s", "33.3 %", "sda"] {
        assert!(text.contains(part), "{part}:\n{text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 100), "{text}");
}

#[test]
fn nothing_is_lost_while_slots_grow() {
    let mut profile = TraceProfile::default();
    for number in 0..20_000_u64 {
        profile.add(&io(number * number * 1_000, Op::Write, number * 4_096, 4_096));
    }
    let written: u64 = profile.slots.slots.iter().map(|slot| slot.ios[1]).sum();
    assert_eq!((written, profile.slots.slots.len() <= 120), (20_000, true));
    let touched: Vec<f64> =
        profile.slots.slots.iter().filter_map(|slot| slot.touched.map(|all| all[0])).collect();
    assert!(touched.len() > 60 && touched.is_sorted());
}

#[test]
fn the_largest_numbers_are_counted_in_no_time() {
    let mut profile = TraceProfile::default();
    for at_ns in [0, u64::MAX] {
        let io = io(at_ns, Op::Read, u64::MAX - 5, u64::MAX);
        profile.add(&TraceIo { latency_ns: Some(u64::MAX), ..io });
        profile.add(&TraceIo { offset_bytes: 0, ..io });
    }
    let mut page = crate::page::Page::default();
    profile.add_to(&mut page, &["x".into()]);
    assert!(page.html().len() > 1_000 && profile.notes().is_some());
    assert!(TraceProfile::default().is_empty());
    let mut empty = crate::page::Page::default();
    TraceProfile::default().add_to(&mut empty, &[]);
    assert!(!empty.html().is_empty() && !TraceProfile::default().text(&[]).is_empty());
}
