//! Requests off the wire, and the verdict on each: a table of cases and a plain model.

use proptest::prelude::*;

use super::{STYLES, catalog, disk, session};
use millrace_nbd::wire::*;
use millrace_nbd::{
    Command, Errno, ProtocolError, ReplyStyle, Request, RequestLimits, RequestVerdict, Session,
    TransmissionFlags, check, parse,
};

const SIZE: u64 = 1 << 30;

fn request(command: Command, offset: u64, length: u64) -> Request {
    Request { cookie: 7, flags: 0, command, offset, length }
}

fn verdict(request: Request, style: ReplyStyle) -> RequestVerdict {
    let session = Session { base_allocation: Some(1), ..session(style) };
    check(&request, &RequestLimits::new(&disk(), &session), &session)
}

/// The error and the bytes to drain of a refusal.
fn refused(request: Request, style: ReplyStyle) -> (Errno, u64) {
    match verdict(request, style) {
        RequestVerdict::Refuse { errno, drain_bytes, .. } => (errno, drain_bytes),
        other => panic!("{request:?}: {other:?}"),
    }
}

#[test]
fn compact_request_is_28_bytes() {
    let bytes = b"\x25\x60\x95\x13\0\x01\0\x01\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\x10\0\0\0\x02\0rest";
    let expected = Request { flags: 1, ..request(Command::Write, 4096, 512) };
    let parsed = Some((expected, 28));
    assert_eq!(parse(bytes, &session(ReplyStyle::Structured)), Ok(parsed));
    for short in 0..28 {
        let parsed = parse(&bytes[..short], &session(ReplyStyle::Simple));
        assert_eq!(parsed, Ok(None));
    }
}

#[test]
fn extended_request_is_32_bytes_with_a_64_bit_length() {
    let mut bytes = b"\x21\xe4\x1c\x71\0\0\0\x06\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\x10\0".to_vec();
    bytes.extend_from_slice(&(1u64 << 40).to_be_bytes());
    let expected = request(Command::WriteZeroes, 4096, 1 << 40);
    let parsed = Some((expected, 32));
    assert_eq!(parse(&bytes, &session(ReplyStyle::Extended)), Ok(parsed));
    let (found, expected) = (EXTENDED_REQUEST_MAGIC.into(), REQUEST_MAGIC.into());
    let error = ProtocolError::BadMagic { what: "a request", found, expected };
    assert_eq!(parse(&bytes, &session(ReplyStyle::Simple)), Err(error));
}

#[test]
fn requests_inside_the_export_are_accepted() {
    use Command::*;
    for style in [ReplyStyle::Simple, ReplyStyle::Structured] {
        for command in [Read, Write, Trim, Cache, WriteZeroes, BlockStatus] {
            assert_eq!(verdict(request(command, SIZE - 512, 512), style), RequestVerdict::Accept);
        }
        assert_eq!(verdict(request(Flush, 0, 0), style), RequestVerdict::Accept);
        assert_eq!(verdict(request(Disc, 1, 1), style), RequestVerdict::Accept);
        assert_eq!(verdict(request(Trim, 0, SIZE), style), RequestVerdict::Accept);
    }
}

#[test]
fn ranges_beyond_the_end_fail_with_the_error_of_their_command() {
    use Command::*;
    for (command, errno) in [
        (Read, Errno::Einval),
        (Trim, Errno::Einval),
        (Cache, Errno::Einval),
        (BlockStatus, Errno::Einval),
        (WriteZeroes, Errno::Enospc),
    ] {
        for offset in [SIZE - 512, SIZE, u64::MAX - 511] {
            let got = refused(request(command, offset, 1024), ReplyStyle::Structured);
            assert_eq!(got, (errno, 0), "{command:?} at {offset}");
        }
    }
    let write = request(Write, SIZE, 1024);
    assert_eq!(refused(write, ReplyStyle::Simple), (Errno::Enospc, 1024));
}

#[test]
fn lengths_and_alignment_are_checked() {
    let simple =
        |command, offset, length| refused(request(command, offset, length), ReplyStyle::Simple);
    assert_eq!(simple(Command::Read, 0, 0), (Errno::Einval, 0));
    assert_eq!(simple(Command::Read, 1, 512), (Errno::Einval, 0));
    assert_eq!(simple(Command::Write, 0, 100), (Errno::Einval, 100));
    assert_eq!(simple(Command::Read, 0, (32 << 20) + 512), (Errno::Einval, 0));
    assert_eq!(simple(Command::Write, 0, (32 << 20) + 512), (Errno::Einval, (32 << 20) + 512));
    assert_eq!(simple(Command::Flush, 0, 512), (Errno::Einval, 0));
    assert_eq!(simple(Command::Flush, 512, 0), (Errno::Einval, 0));
    let huge = request(Command::Write, 0, (64 << 20) + 1);
    assert!(matches!(verdict(huge, ReplyStyle::Simple), RequestVerdict::Disconnect(_)));
}

#[test]
fn read_only_exports_refuse_writes_with_eperm() {
    let session = session(ReplyStyle::Simple);
    let rules = RequestLimits::new(&catalog()[1], &session);
    for command in [Command::Write, Command::Trim, Command::WriteZeroes] {
        let got = check(&request(command, 0, 512), &rules, &session);
        assert!(matches!(got, RequestVerdict::Refuse { errno: Errno::Eperm, .. }), "{got:?}");
    }
    assert_eq!(check(&request(Command::Read, 0, 512), &rules, &session), RequestVerdict::Accept);
}

#[test]
fn commands_that_were_not_offered_are_invalid() {
    let session = session(ReplyStyle::Simple);
    let export = super::ExportInfo { flags: TransmissionFlags::new(), ..disk() };
    let rules = RequestLimits::new(&export, &session);
    use Command::*;
    for command in [Flush, Trim, Cache, WriteZeroes, BlockStatus, Unknown(8)] {
        let length = if command == Flush { 0 } else { 512 };
        let got = check(&request(command, 0, length), &rules, &session);
        assert!(matches!(got, RequestVerdict::Refuse { errno: Errno::Einval, .. }), "{command:?}");
    }
    let fua = Request { flags: CMD_FLAG_FUA, ..request(Write, 0, 512) };
    let got = check(&fua, &rules, &session);
    assert!(matches!(got, RequestVerdict::Refuse { errno: Errno::Einval, drain_bytes: 512, .. }));
}

#[test]
fn each_flag_is_known_only_to_its_commands() {
    use Command::*;
    let known = |command, style| -> u16 {
        let length = if command == Flush { 0 } else { 512 };
        let accepts = |flag: &u16| {
            let request = Request { flags: *flag, ..request(command, 0, length) };
            verdict(request, style) == RequestVerdict::Accept
        };
        (0..16).map(|bit| 1 << bit).filter(accepts).sum()
    };
    assert_eq!(known(Read, ReplyStyle::Simple), CMD_FLAG_FUA);
    assert_eq!(known(Read, ReplyStyle::Structured), CMD_FLAG_FUA | CMD_FLAG_DF);
    assert_eq!(known(Read, ReplyStyle::Extended), CMD_FLAG_FUA | CMD_FLAG_DF);
    assert_eq!(known(Write, ReplyStyle::Simple), CMD_FLAG_FUA);
    assert_eq!(known(Write, ReplyStyle::Extended), CMD_FLAG_PAYLOAD_LEN);
    assert_eq!(known(Flush, ReplyStyle::Simple), CMD_FLAG_FUA);
    assert_eq!(known(Trim, ReplyStyle::Simple), CMD_FLAG_FUA);
    let zeroes = CMD_FLAG_FUA | CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO;
    assert_eq!(known(WriteZeroes, ReplyStyle::Simple), zeroes);
    assert_eq!(known(BlockStatus, ReplyStyle::Structured), CMD_FLAG_FUA | CMD_FLAG_REQ_ONE);
}

#[test]
fn extended_payloads_follow_their_flag() {
    let write = request(Command::Write, 0, 512);
    assert_eq!(refused(write, ReplyStyle::Extended), (Errno::Einval, 0));
    let with = Request { flags: CMD_FLAG_PAYLOAD_LEN, ..write };
    assert_eq!(verdict(with, ReplyStyle::Extended), RequestVerdict::Accept);
    let read = Request { command: Command::Read, ..with };
    assert_eq!(refused(read, ReplyStyle::Extended), (Errno::Einval, 512));
    let huge = Request { length: u64::MAX, ..read };
    assert!(matches!(verdict(huge, ReplyStyle::Extended), RequestVerdict::Disconnect(_)));
    let trim = request(Command::Trim, 0, !511);
    assert_eq!(refused(trim, ReplyStyle::Extended), (Errno::Einval, 0));
}

/// The error a plain model gives, in exact arithmetic, for requests without flags.
fn model(request: &Request, rules: &RequestLimits, chunks: bool) -> Option<Errno> {
    use Command::*;
    let (offset, length) = (u128::from(request.offset), u128::from(request.length));
    let writes = matches!(request.command, Write | Trim | WriteZeroes);
    if writes && rules.flags.contains(TransmissionFlags::READ_ONLY) {
        return Some(Errno::Eperm);
    }
    let offered = match request.command {
        Flush => rules.flags.contains(TransmissionFlags::FLUSH),
        Trim => rules.flags.contains(TransmissionFlags::TRIM),
        Cache => rules.flags.contains(TransmissionFlags::CACHE),
        WriteZeroes => rules.flags.contains(TransmissionFlags::WRITE_ZEROES),
        BlockStatus => chunks,
        Unknown(_) => false,
        Read | Write | Disc => true,
    };
    let block = u128::from(rules.block_min);
    let payload = matches!(request.command, Read | Write);
    let bad = match request.command {
        Flush => offset + length != 0,
        _ => {
            length == 0
                || offset % block != 0
                || length % block != 0
                || payload && length > u128::from(rules.payload_bytes_max)
        }
    };
    if !offered || bad {
        return Some(Errno::Einval);
    }
    let outside = offset + length > u128::from(rules.size_bytes);
    outside.then_some(match request.command {
        Write | WriteZeroes => Errno::Enospc,
        _ => Errno::Einval,
    })
}

fn near(edge: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        Just(0),
        any::<u64>(),
        (0..=u64::MAX >> 9).prop_map(|n| n << 9),
        (0..8u64).prop_map(move |n| (edge + (n << 9)).wrapping_sub(2048)),
        (0..8u64).prop_map(|n| u64::MAX - n),
    ]
}

proptest! {
    #[test]
    fn check_agrees_with_a_model_in_exact_arithmetic(
        number in (0u16..10).prop_filter("no answer to a disconnect", |n| *n != CMD_DISC),
        offset in near(SIZE),
        length in near(32 << 20),
        bits: u16,
        shift in 0u32..13,
        style in 0usize..2,
    ) {
        let base_allocation = (style == 1).then_some(1);
        let session = Session { base_allocation, ..session(STYLES[style]) };
        let command = Command::from_wire(number);
        let length = length & u64::from(u32::MAX);
        let request = request(command, offset, length);
        let export = super::ExportInfo {
            flags: TransmissionFlags::from_bits(bits),
            block_min: 1 << shift,
            ..disk()
        };
        let rules = RequestLimits::new(&export, &session);
        let drain = if command == Command::Write { length } else { 0 };
        match check(&request, &rules, &session) {
            RequestVerdict::Accept => prop_assert_eq!(model(&request, &rules, style == 1), None),
            RequestVerdict::Refuse { errno, drain_bytes, .. } => {
                prop_assert_eq!(model(&request, &rules, style == 1), Some(errno));
                prop_assert_eq!(drain_bytes, drain);
            }
            RequestVerdict::Disconnect(_) => prop_assert!(drain > 64 << 20),
        }
    }
}
