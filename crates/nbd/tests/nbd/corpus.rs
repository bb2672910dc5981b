//! The seeds of the fuzzer: small valid conversations, written by the codec itself.
//!
//! `NBD_CORPUS=<directory> cargo test -- --ignored fuzz_seeds` writes them.

use super::client::converse;
use super::{STYLES, context_data, info_data, play, session, stream};
use millrace_nbd::wire::*;
use millrace_nbd::{
    Command, Errno, Extent, Position, REPLY_BYTES_MAX, Reply, ReplyStyle, Request, StatusQuery,
    encode_request,
};

/// A request of every command, with the payload of the write.
fn requests(style: ReplyStyle) -> Vec<u8> {
    let mut bytes = Vec::new();
    for number in [0, 1, 3, 4, 5, 6, 7, 2] {
        let command = Command::from_wire(number);
        let length = if matches!(command, Command::Flush | Command::Disc) { 0 } else { 512 };
        let request = Request { cookie: number.into(), flags: 0, command, offset: 0, length };
        let mut header = [0; 32];
        let len = encode_request(&request, style, &mut header);
        bytes.extend_from_slice(&header[..len]);
        if command == Command::Write {
            bytes.extend_from_slice(&[0xa5; 512]);
        }
    }
    bytes
}

/// A reply of every kind that the style has.
fn replies(style: ReplyStyle) -> Vec<u8> {
    let command = Command::Read;
    let request = Request { cookie: 1, flags: 0, command, offset: 512, length: 512 };
    let reply = Reply::new(&request, &session(style));
    let (mut bytes, mut buffer) = (Vec::new(), [0; REPLY_BYTES_MAX]);
    let mut push = |len: usize, buffer: &[u8]| bytes.extend_from_slice(&buffer[..len]);
    push(reply.success(&mut buffer), &buffer);
    push(reply.failure(&mut buffer, Errno::Eio, "medium"), &buffer);
    if style != ReplyStyle::Simple {
        push(reply.offset_hole(&mut buffer, Position::More, 512, 256), &buffer);
        push(reply.offset_data(&mut buffer, Position::Last, 768, 256), &buffer);
        push(256, &[0x5a; 256]);
        let extents = [true, false].map(|hole| Extent { len: 256, hole, zero: hole });
        let len = StatusQuery::new(&request, 1).encode(&reply, extents, &mut buffer);
        push(len.unwrap(), &buffer);
    }
    bytes
}

fn seeds() -> Vec<(String, Vec<u8>)> {
    let mut all = Vec::new();
    for style in STYLES {
        let (sent, answered, end) = converse("disk", style);
        end.unwrap();
        let name = format!("{style:?}").to_lowercase();
        all.push((format!("client-{name}"), [sent, requests(style)].concat()));
        all.push((format!("server-{name}"), [answered, replies(style)].concat()));
        all.push((format!("replies-{name}"), replies(style)));
    }
    let context = context_data("disk", &["base:", "base:allocation"]);
    let options = [
        (OPT_LIST, vec![]),
        (OPT_STARTTLS, vec![]),
        (OPT_STRUCTURED_REPLY, vec![]),
        (OPT_LIST_META_CONTEXT, context.clone()),
        (OPT_SET_META_CONTEXT, context),
        (OPT_INFO, info_data("ro", &[1, 2, 3])),
        (OPT_GO, info_data("disk", &[3])),
    ];
    let every_option = [stream(&options), requests(ReplyStyle::Structured)].concat();
    all.push(("client-every-option".to_owned(), every_option));
    all.push(("client-export-name".to_owned(), stream(&[(OPT_EXPORT_NAME, b"ro".to_vec())])));
    all.push(("client-abort".to_owned(), stream(&[(OPT_ABORT, vec![])])));
    all.push(("uri-tcp".to_owned(), b"nbd://[::1]:10809/hello%20world".to_vec()));
    all.push(("uri-unix".to_owned(), b"nbd+unix:///disk?socket=/run/a".to_vec()));
    all
}

#[test]
fn seeds_are_small_and_clients_among_them_negotiate() {
    for (name, bytes) in seeds() {
        assert!(bytes.len() < 2048, "{name} has {} bytes", bytes.len());
        if name.starts_with("client-") {
            let (_, _, end) = play(&bytes, &[]);
            assert_ne!(end, Ok(super::Progress::NeedMore), "{name}");
            assert!(end.is_ok(), "{name}: {end:?}");
        }
    }
}

#[test]
#[ignore = "writes the seeds of the fuzzer"]
fn fuzz_seeds_are_written() {
    let directory = std::path::PathBuf::from(std::env::var("NBD_CORPUS").unwrap());
    for (name, bytes) in seeds() {
        std::fs::write(directory.join(name), bytes).unwrap();
    }
}
