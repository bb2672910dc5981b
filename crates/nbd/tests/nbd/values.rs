//! The numbers of the specification, spelled out once more, and the sets of bits made of them.

use super::STYLES;
use millrace_nbd::status::DESCRIPTORS_MAX;
use millrace_nbd::wire::*;
use millrace_nbd::{Command, ReplyStyle, Request, TransmissionFlags};

#[test]
fn flags_and_errors_have_the_values_of_the_specification() {
    assert_eq!([FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES], [1, 2]);
    assert_eq!([FLAG_C_FIXED_NEWSTYLE, FLAG_C_NO_ZEROES], [1, 2]);
    let errors = [
        REP_ERR_UNSUP,
        REP_ERR_POLICY,
        REP_ERR_INVALID,
        REP_ERR_PLATFORM,
        REP_ERR_TLS_REQD,
        REP_ERR_UNKNOWN,
        REP_ERR_SHUTDOWN,
        REP_ERR_BLOCK_SIZE_REQD,
        REP_ERR_TOO_BIG,
        REP_ERR_EXT_HEADER_REQD,
    ];
    assert!(errors.into_iter().eq(0x8000_0001..=0x8000_000a));
    let flags = [
        CMD_FLAG_FUA,
        CMD_FLAG_NO_HOLE,
        CMD_FLAG_DF,
        CMD_FLAG_REQ_ONE,
        CMD_FLAG_FAST_ZERO,
        CMD_FLAG_PAYLOAD_LEN,
    ];
    assert_eq!(flags, [1, 2, 4, 8, 16, 32]);
    assert_eq!([REPLY_FLAG_DONE, REPLY_TYPE_ERROR, REPLY_TYPE_ERROR_OFFSET], [1, 0x8001, 0x8002]);
    assert_eq!([STATE_HOLE, STATE_ZERO], [1, 2]);
    assert_eq!(DESCRIPTORS_MAX, 1_048_576);
}

#[test]
fn transmission_flags_are_bits_beside_bit_0() {
    type Flags = TransmissionFlags;
    let all = [
        (Flags::READ_ONLY, 0x3),
        (Flags::FLUSH, 0x5),
        (Flags::FUA, 0x9),
        (Flags::ROTATIONAL, 0x11),
        (Flags::TRIM, 0x21),
        (Flags::WRITE_ZEROES, 0x41),
        (Flags::DF, 0x81),
        (Flags::MULTI_CONN, 0x101),
        (Flags::CACHE, 0x401),
        (Flags::FAST_ZERO, 0x801),
    ];
    for (flag, bits) in all {
        assert_eq!(flag.bits(), bits);
        assert_eq!([bits, bits & !1].map(Flags::from_bits), [flag, flag]);
        assert_eq!(flag.with(Flags::new()), flag);
        assert_eq!(flag.with(flag), flag);
        assert_eq!(flag.without(flag), Flags::new());
        assert_eq!(Flags::default(), Flags::new());
        for (other, more) in all.into_iter().filter(|other| other.0 != flag) {
            let both = flag.with(other);
            assert_eq!(both.bits(), bits | more);
            assert!(both.contains(flag) && both.contains(other) && !flag.contains(both));
            assert_eq!((both.without(other), flag.without(other)), (flag, flag));
        }
    }
    assert_eq!(Flags::new().bits(), 1);
}

#[test]
fn df_is_shown_with_chunks_and_fast_zero_beside_write_zeroes() {
    type Flags = TransmissionFlags;
    let zeroes = Flags::WRITE_ZEROES.with(Flags::FAST_ZERO);
    for style in STYLES {
        let df = Flags::DF.negotiated(style).contains(Flags::DF);
        assert_eq!(df, style != ReplyStyle::Simple);
        assert_eq!(Flags::FAST_ZERO.negotiated(style), Flags::new());
        assert_eq!(zeroes.negotiated(style), zeroes);
        assert_eq!(Flags::FUA.negotiated(style), Flags::FUA);
    }
}

#[test]
fn commands_are_numbers() {
    for number in 0..20 {
        let command = Command::from_wire(number);
        assert_eq!(command.to_wire(), number);
        assert_eq!(matches!(command, Command::Unknown(_)), number > 7);
    }
}

#[test]
fn a_payload_follows_writes_and_with_extended_headers_its_flag() {
    for command in [Command::Read, Command::Write, Command::Trim] {
        for flags in [0, CMD_FLAG_FUA, CMD_FLAG_PAYLOAD_LEN, CMD_FLAG_FUA | CMD_FLAG_PAYLOAD_LEN] {
            let request = Request { cookie: 1, flags, command, offset: 0, length: 77 };
            let flagged = flags >= CMD_FLAG_PAYLOAD_LEN;
            assert_eq!(request.has(CMD_FLAG_PAYLOAD_LEN), flagged);
            assert_eq!(request.has(CMD_FLAG_FUA), flags % 2 == 1);
            for style in STYLES {
                let follows = match style {
                    ReplyStyle::Extended => flagged,
                    _ => command == Command::Write,
                };
                assert_eq!(request.payload_bytes(style), if follows { 77 } else { 0 });
            }
        }
    }
}

#[test]
fn readers_and_writers_know_where_they_are() {
    let mut room = [0; 9];
    let mut writer = Writer::new(&mut room);
    assert!(writer.is_empty());
    writer.u16(0x0102).u32(0x0304_0506).bytes(b"abc");
    assert_eq!((writer.len(), writer.is_empty()), (9, false));
    assert_eq!(room, *b"\x01\x02\x03\x04\x05\x06abc");
    let mut reader = Reader::new(b"\0\0\0\x02xyz");
    assert_eq!(
        (reader.counted(), reader.rest(), reader.is_empty()),
        (Some(&b"xy"[..]), &b"z"[..], false)
    );
    assert_eq!((reader.bytes(2), reader.u16()), (None, None));
    assert_eq!((reader.bytes(1), reader.is_empty()), (Some(&b"z"[..]), true));
    for (bytes, expected) in [
        (vec![b'a'; 4096], true),
        (vec![b'a'; 4097], false),
        (b"a\0".to_vec(), false),
        (vec![0xff], false),
        (vec![], true),
    ] {
        let found = string(&bytes).map(str::as_bytes);
        assert_eq!(found, expected.then_some(&bytes[..]));
    }
}
