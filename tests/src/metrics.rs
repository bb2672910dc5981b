//! The metrics page of a daemon, as a scraper gets it.
//!
//! Pure but for the request. Called by the tests of metrics and dashboards.

use std::io::{Read, Write};
use std::net::TcpStream;

use crate::Daemon;

/// Address of a daemon's metrics, `ADDRESS:PORT`, as a daemon with `[server] metrics` prints it.
///
/// # Panics
///
/// If it has said nothing of it.
#[must_use]
pub fn address(daemon: &Daemon) -> String {
    let out = daemon.stdout();
    let line = out.lines().find_map(|line| line.strip_prefix("metrics at http://"));
    let address = line.and_then(|line| line.strip_suffix("/metrics"));
    address.unwrap_or_else(|| panic!("no metrics in {out}")).to_owned()
}

/// The body of a page at an address.
///
/// # Panics
///
/// If it is not there.
#[must_use]
pub fn get(address: &str, path: &str) -> String {
    let (head, body) = answer(address, path);
    assert!(head.starts_with("HTTP/1.1 200 OK\r\n"), "{head}");
    body
}

/// HTTP status of the answer for a page.
///
/// # Panics
///
/// If nobody answers.
#[must_use]
pub fn status(address: &str, path: &str) -> u16 {
    let (head, _) = answer(address, path);
    let status = head.split(' ').nth(1).and_then(|word| word.parse().ok());
    status.unwrap_or_else(|| panic!("no status in {head}"))
}

fn answer(address: &str, path: &str) -> (String, String) {
    let mut socket = TcpStream::connect(address).expect("somebody serves there");
    write!(socket, "GET {path} HTTP/1.1\r\nHost: {address}\r\n\r\n").expect("it reads");
    let mut text = String::new();
    socket.read_to_string(&mut text).expect("it answers in UTF-8");
    let (head, body) = text.split_once("\r\n\r\n").expect("an answer has a head");
    (head.to_owned(), body.to_owned())
}
