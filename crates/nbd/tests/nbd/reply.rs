//! Exact bytes of every reply, and of block status; the client's parser reads each back.

use super::session;
use millrace_nbd::client::{ServerReply, parse_reply};
use millrace_nbd::status::descriptors;
use millrace_nbd::wire::*;
use millrace_nbd::{
    Command, DescriptorWidth, Errno, Extent, Position, REPLY_BYTES_MAX, Reply, ReplyBuffer,
    ReplyStyle, Request, StatusError, StatusQuery,
};

const COOKIE: u64 = 0x0102_0304_0506_0708;
const REQUEST: Request =
    Request { cookie: COOKIE, flags: 0, command: Command::Read, offset: 4096, length: 8192 };

fn reply(style: ReplyStyle) -> Reply {
    Reply::new(&REQUEST, &session(style))
}

fn bytes(encode: impl FnOnce(&mut ReplyBuffer) -> usize) -> Vec<u8> {
    let mut buffer = [0xee; REPLY_BYTES_MAX];
    let len = encode(&mut buffer);
    buffer[..len].to_vec()
}

fn parsed(bytes: &[u8], style: ReplyStyle) -> ServerReply<'_> {
    for short in 0..bytes.len() {
        assert_eq!(parse_reply(&bytes[..short], style), Ok(None));
    }
    match parse_reply(bytes, style) {
        Ok(Some((reply, header_bytes))) if header_bytes == bytes.len() => reply,
        other => panic!("{other:?}"),
    }
}

#[test]
fn simple_reply_is_16_bytes() {
    let simple = reply(ReplyStyle::Simple);
    let ok = bytes(|buffer| simple.success(buffer));
    assert_eq!(ok, b"\x67\x44\x66\x98\0\0\0\0\x01\x02\x03\x04\x05\x06\x07\x08");
    assert_eq!(bytes(|buffer| simple.read(buffer, 8192)), ok);
    let failed = bytes(|buffer| simple.failure(buffer, Errno::Enospc, "no place for this text"));
    assert_eq!(failed, b"\x67\x44\x66\x98\0\0\0\x1c\x01\x02\x03\x04\x05\x06\x07\x08");
    let expected = ServerReply::Simple { cookie: COOKIE, errno: Some(Errno::Enospc) };
    assert_eq!(parsed(&failed, ReplyStyle::Simple), expected);
    assert_eq!(parsed(&failed, ReplyStyle::Structured), expected);
}

#[test]
fn structured_chunks_have_20_bytes_of_header() {
    let style = ReplyStyle::Structured;
    let head = |flags: u8, kind: [u8; 2], len: u8| -> Vec<u8> {
        let cookie = COOKIE.to_be_bytes();
        [b"\x66\x8e\x33\xef\0", &[flags][..], &kind, &cookie, &[0, 0, 0, len]].concat()
    };
    let done = bytes(|buffer| reply(style).success(buffer));
    assert_eq!(done, head(1, [0, 0], 0));
    assert_eq!(parsed(&done, style), ServerReply::Done { cookie: COOKIE });
    let data = bytes(|buffer| reply(style).offset_data(buffer, Position::More, 5000, 100));
    assert_eq!(data, [head(0, [0, 1], 108), 5000u64.to_be_bytes().to_vec()].concat());
    let expected = ServerReply::Data { cookie: COOKIE, offset: 5000, length: 100, last: false };
    assert_eq!(parsed(&data, style), expected);
    let hole = bytes(|buffer| reply(style).offset_hole(buffer, Position::Last, 4096, 512));
    assert_eq!(hole, [&head(1, [0, 2], 12)[..], b"\0\0\0\0\0\0\x10\0\0\0\x02\0"].concat());
    let expected = ServerReply::Hole { cookie: COOKIE, offset: 4096, length: 512, last: true };
    assert_eq!(parsed(&hole, style), expected);
    let error = bytes(|buffer| reply(style).failure(buffer, Errno::Einval, "odd"));
    assert_eq!(error, [&head(1, [0x80, 1], 9)[..], b"\0\0\0\x16\0\x03odd"].concat());
    let (errno, message) = (Errno::Einval, "odd");
    let expected = ServerReply::Error { cookie: COOKIE, errno, at: None, message, last: true };
    assert_eq!(parsed(&error, style), expected);
}

#[test]
fn extended_chunks_have_32_bytes_of_header_and_repeat_offset() {
    let style = ReplyStyle::Extended;
    let data = bytes(|buffer| reply(style).read(buffer, 8192));
    let mut expected = b"\x6e\x8a\x27\x8c\0\x01\0\x01".to_vec();
    for number in [COOKIE, 4096, 8200, 4096] {
        expected.extend_from_slice(&number.to_be_bytes());
    }
    assert_eq!(data, expected);
    let expected = ServerReply::Data { cookie: COOKIE, offset: 4096, length: 8192, last: true };
    assert_eq!(parsed(&data, style), expected);
    let done = bytes(|buffer| reply(style).success(buffer));
    assert_eq!((done.len(), parsed(&done, style)), (32, ServerReply::Done { cookie: COOKIE }));
}

#[test]
fn long_messages_are_cut_between_characters() {
    let text = "\u{e9}".repeat(100);
    let cut = bytes(|buffer| reply(ReplyStyle::Extended).failure(buffer, Errno::Eio, &text));
    assert_eq!(cut.len(), REPLY_BYTES_MAX);
    match parsed(&cut, ReplyStyle::Extended) {
        ServerReply::Error { message, .. } => assert_eq!(message, "\u{e9}".repeat(45)),
        other => panic!("{other:?}"),
    }
}

#[test]
fn error_chunks_with_an_offset_and_of_unknown_types_are_errors() {
    let mut chunk = b"\x66\x8e\x33\xef\0\0\x80\x02\0\0\0\0\0\0\0\x09\0\0\0\x10".to_vec();
    chunk.extend_from_slice(b"\0\0\0\x05\0\x02no\0\0\0\0\0\0\x02\0");
    let (cookie, errno, message) = (9, Errno::Eio, "no");
    let at = Some(512);
    let expected = ServerReply::Error { cookie, errno, at, message, last: false };
    assert_eq!(parsed(&chunk, ReplyStyle::Structured), expected);
    chunk[7] = 0x77;
    chunk[23] = 99;
    let (errno, at) = (Errno::Einval, None);
    let expected = ServerReply::Error { cookie, errno, at, message, last: false };
    assert_eq!(parsed(&chunk, ReplyStyle::Structured), expected);
}

#[test]
fn broken_chunks_are_protocol_errors() {
    let chunk = |flags: u8, kind: u8, len: u8| {
        let mut bytes = b"\x66\x8e\x33\xef".to_vec();
        bytes.extend_from_slice(&[0, flags, 0, kind, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, len]);
        bytes.extend_from_slice(&[0; 32]);
        bytes
    };
    for (flags, kind, len) in [
        (1, 0, 1),
        (0, 0, 0),
        (1, 1, 8),
        (1, 2, 11),
        (1, 2, 12),
        (1, 5, 4),
        (1, 5, 13),
        (1, 6, 24),
        (1, 9, 0),
    ] {
        let bytes = chunk(flags, kind, len);
        let got = parse_reply(&bytes, ReplyStyle::Structured);
        assert!(got.is_err(), "{flags} {kind} {len}: {got:?}");
    }
    assert!(parse_reply(&chunk(1, 0, 0), ReplyStyle::Extended).is_err());
    assert!(parse_reply(&SIMPLE_REPLY_MAGIC.to_be_bytes(), ReplyStyle::Extended).is_err());
}

const DATA: Extent = Extent { len: 4096, hole: false, zero: false };
const HOLE: Extent = Extent { len: 1024, hole: true, zero: true };

fn status(
    style: ReplyStyle,
    query: StatusQuery,
    extents: &[Extent],
    room: usize,
) -> Result<Vec<u8>, StatusError> {
    let mut out = vec![0; room];
    let len = query.encode(&reply(style), extents.iter().copied(), &mut out)?;
    out.truncate(len);
    Ok(out)
}

const QUERY: StatusQuery = StatusQuery { context_id: 1, length: 8192, descriptors_max: 100 };

#[test]
fn block_status_merges_neighbours_and_stops_at_the_length() {
    let extents = [DATA, HOLE, Extent { len: 0, ..DATA }, HOLE, DATA];
    let got = status(ReplyStyle::Structured, QUERY, &extents, 128).unwrap();
    let payload = b"\0\0\0\x01\0\0\x10\0\0\0\0\0\0\0\x08\0\0\0\0\x03\0\0\x08\0\0\0\0\0";
    assert_eq!(&got[..8], b"\x66\x8e\x33\xef\0\x01\0\x05");
    assert_eq!((&got[16..20], &got[20..]), (&[0, 0, 0, 28][..], &payload[..]));
    let wide = status(ReplyStyle::Extended, QUERY, &extents, 128).unwrap();
    assert_eq!(
        (&wide[24..32], &wide[32..40]),
        (&[0, 0, 0, 0, 0, 0, 0, 56][..], &b"\0\0\0\x01\0\0\0\x03"[..])
    );
    let two = Extent { len: 2048, ..HOLE };
    let back: Vec<Extent> = descriptors(&wide[40..], DescriptorWidth::Bits64).collect();
    assert_eq!(back, [DATA, two, Extent { len: 2048, ..DATA }]);
    assert_eq!(descriptors(&got[24..], DescriptorWidth::Bits32).collect::<Vec<_>>(), back);
    let head = parse_reply(&wide, ReplyStyle::Extended).unwrap();
    let (cookie, context_id, descriptor_bytes) = (COOKIE, 1, 48);
    let reply = ServerReply::Status {
        cookie,
        context_id,
        width: DescriptorWidth::Bits64,
        descriptor_bytes,
        last: true,
    };
    assert_eq!(head, Some((reply, 40)));
}

#[test]
fn block_status_bounds_the_number_of_descriptors() {
    let request = Request { flags: CMD_FLAG_REQ_ONE, length: 2048, ..REQUEST };
    let one = StatusQuery::new(&request, 1);
    let got = status(ReplyStyle::Structured, one, &[DATA, HOLE], 128).unwrap();
    let short = Extent { len: 2048, ..DATA };
    assert_eq!(descriptors(&got[24..], DescriptorWidth::Bits32).collect::<Vec<_>>(), [short]);
    let got =
        status(ReplyStyle::Structured, QUERY, &[HOLE, DATA, HOLE, DATA], 24 + 16 + 7).unwrap();
    assert_eq!(descriptors(&got[24..], DescriptorWidth::Bits32).collect::<Vec<_>>(), [HOLE, DATA]);
    let no_room = status(ReplyStyle::Structured, QUERY, &[DATA], 31);
    assert_eq!(no_room, Err(StatusError::NoRoom(31)));
    let none = status(ReplyStyle::Structured, QUERY, &[], 128);
    assert_eq!(none, Err(StatusError::NoExtent));
    let simple = status(ReplyStyle::Simple, QUERY, &[DATA], 128);
    assert_eq!(simple, Err(StatusError::NoChunks));
}

#[test]
fn wide_descriptors_hold_64_bits_and_narrow_ones_are_safe() {
    let query = StatusQuery { length: 1 << 40, ..QUERY };
    let all = [Extent { len: u64::MAX, ..HOLE }];
    let wide = status(ReplyStyle::Extended, query, &all, 128).unwrap();
    let got: Vec<_> = descriptors(&wide[40..], DescriptorWidth::Bits64).collect();
    assert_eq!(got, [Extent { len: 1 << 40, ..HOLE }]);
    let narrow = status(ReplyStyle::Structured, query, &all, 128).unwrap();
    let got: Vec<_> = descriptors(&narrow[24..], DescriptorWidth::Bits32).collect();
    assert_eq!(got, [Extent { len: 0xffff_0000, ..HOLE }]);
}

#[test]
fn errors_survive_the_wire() {
    for errno in Errno::ALL {
        assert_eq!(Errno::from_wire(errno.to_wire()), Some(errno));
    }
    assert_eq!(Errno::from_wire(0), None);
    assert_eq!(Errno::from_wire(11), Some(Errno::Einval));
}

#[test]
fn states_of_an_extent_are_bits_of_their_own() {
    for (hole, zero, flags) in
        [(false, false, 0), (true, false, 1), (false, true, 2), (true, true, 3)]
    {
        let extent = Extent { len: 8192, hole, zero };
        for (style, at) in [(ReplyStyle::Structured, 31), (ReplyStyle::Extended, 55)] {
            let got = status(style, QUERY, &[extent], 128).unwrap();
            assert_eq!((got[at], got.len()), (flags, at + 1));
            let (head, width) = match style {
                ReplyStyle::Extended => (40, DescriptorWidth::Bits64),
                _ => (24, DescriptorWidth::Bits32),
            };
            assert_eq!(descriptors(&got[head..], width).collect::<Vec<_>>(), [extent]);
        }
    }
    // Flags of later specifications are passed over.
    let later = [&8192u32.to_be_bytes()[..], &0xfffc_u32.to_be_bytes()].concat();
    let plain = Extent { len: 8192, hole: false, zero: false };
    assert_eq!(descriptors(&later, DescriptorWidth::Bits32).collect::<Vec<_>>(), [plain]);
}

#[test]
fn extents_are_pulled_no_further_than_the_reply_needs() {
    for (room, length, pulled) in
        [(24 + 8, 8192, 2), (24 + 16, 8192, 3), (128, 4096, 1), (128, 4097, 2)]
    {
        let (mut out, mut count) = (vec![0; room], 0);
        let query = StatusQuery { length, ..QUERY };
        let extents = [DATA, HOLE, DATA, HOLE, DATA].into_iter().inspect(|_| count += 1);
        query.encode(&reply(ReplyStyle::Structured), extents, &mut out).unwrap();
        assert_eq!(count, pulled, "{room} {length}");
    }
    let all = StatusQuery::new(&REQUEST, 5);
    assert_eq!((all.context_id, all.length, all.descriptors_max), (5, 8192, 1 << 20));
}
