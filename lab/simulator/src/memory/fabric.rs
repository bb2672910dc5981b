//! `Fabric`: distances between CPUs, and the links that a cache line crosses.
//!
//! Each simulation creates a fabric from its model, with all times in picoseconds. Used by line.rs
//! and lock.rs. A transfer occupies each link on its path for the bytes of a line and its header;
//! later transfers queue in order of request. Not modelled: snoop traffic, and the links to memory.

use std::vec;
use std::vec::Vec;

use crate::model::prices::{TransferKind, TransferPrices};
use crate::model::time::PS_PER_NS;
use crate::model::transfer::Transfer;
use crate::model::{Model, Rate, Wiring};

/// Bytes of a transfer over a link: a cache line of 64 bytes, and a header.
const LINE_BYTES: u64 = 80;

fn line_ps(rate: &Rate) -> u64 {
    (LINE_BYTES as f64 * PS_PER_NS as f64 / rate.bytes_per_ns).round() as u64
}

const NONE: u16 = u16::MAX;

/// Index of the only link of a machine with `Wiring::Bus`.
const BUS: u16 = 0;

#[derive(Debug, Clone, Copy)]
struct SocketPath {
    prices: TransferPrices,
    /// Indexes of the links that a transfer crosses, in this order. Unused entries are `NONE`.
    links: [u16; 2],
}

#[derive(Debug, Clone, Copy, Default)]
struct LinkState {
    line_ps: u64,
    busy_until_ps: u64,
    lines: u64,
}

/// Traffic of one link in one direction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LinkUse {
    /// True for a link between boards, false for a link between sockets.
    pub board: bool,
    /// Socket or board that sent the cache lines.
    pub from: u32,
    /// Socket or board that received the cache lines.
    pub to: u32,
    /// Bytes that the link carried, including headers.
    pub bytes: u64,
    /// Time for which the link was occupied, in nanoseconds.
    pub busy_ns: u64,
}

#[derive(Debug)]
pub(crate) struct Fabric {
    cpus_per_socket: usize,
    sockets: usize,
    boards: usize,
    paths: Vec<SocketPath>,
    links: Vec<LinkState>,
}

impl Fabric {
    pub(crate) fn new(model: &Model) -> Self {
        let sockets = model.sockets as usize;
        let per_board = match model.sockets_per_board {
            0 => sockets,
            sockets => sockets as usize,
        };
        let boards = sockets / per_board;
        let mut links = vec![LinkState::default(); sockets * sockets + boards * boards];
        let (of_sockets, of_boards) = links.split_at_mut(sockets * sockets);
        of_sockets.iter_mut().for_each(|link| link.line_ps = line_ps(&model.cache.link));
        of_boards.iter_mut().for_each(|link| link.line_ps = line_ps(&model.cache.board_link));
        let path = |index| path(model, (index / sockets, index % sockets), (sockets, per_board));
        let paths = (0..sockets * sockets).map(path).collect();
        let cpus_per_socket = model.cpus_per_socket() as usize;
        Fabric { cpus_per_socket, sockets, boards, paths, links }
    }

    #[inline]
    pub(crate) fn socket_of(&self, cpu: usize) -> usize {
        cpu / self.cpus_per_socket
    }

    #[inline]
    pub(crate) fn cpus_of(&self, socket: usize) -> (usize, usize) {
        (socket * self.cpus_per_socket, self.cpus_per_socket)
    }

    pub(crate) fn sockets(&self) -> usize {
        self.sockets
    }

    #[inline]
    fn path(&self, from: usize, to: usize) -> &SocketPath {
        &self.paths[from * self.sockets + to]
    }

    #[inline]
    pub(crate) fn transfer_ps(&self, from: usize, to: usize, wanted: TransferKind) -> u64 {
        self.path(from, to).prices.of(wanted)
    }

    /// Sends `lines` cache lines. Returns the total time in picoseconds, including the wait for
    /// busy links.
    #[inline]
    pub(crate) fn send(
        &mut self,
        now_ps: u64,
        (from, to): (usize, usize),
        lines: u64,
        wanted: TransferKind,
    ) -> u64 {
        let SocketPath { prices, links } = *self.path(from, to);
        let mut wait_ps = 0;
        for link in links.into_iter().take_while(|link| *link != NONE) {
            let link = &mut self.links[usize::from(link)];
            wait_ps += link.busy_until_ps.saturating_sub(now_ps);
            link.busy_until_ps = link.busy_until_ps.max(now_ps) + link.line_ps * lines;
            link.lines += lines;
        }
        prices.of(wanted) * lines + wait_ps
    }

    pub(crate) fn link_use(&self) -> Vec<LinkUse> {
        let of_sockets = self.sockets * self.sockets;
        let row = |(index, link): (usize, &LinkState)| {
            let board = index >= of_sockets;
            let (index, side) = match board {
                true => (index - of_sockets, self.boards),
                false => (index, self.sockets),
            };
            LinkUse {
                board,
                from: (index / side) as u32,
                to: (index % side) as u32,
                bytes: link.lines * LINE_BYTES,
                busy_ns: link.lines * link.line_ps / PS_PER_NS,
            }
        };
        self.links.iter().enumerate().filter(|(_, link)| link.lines > 0).map(row).collect()
    }
}

fn path(
    model: &Model,
    (from, to): (usize, usize),
    (sockets, per_board): (usize, usize),
) -> SocketPath {
    let cache = &model.cache;
    let made = |transfer: &Transfer, links| SocketPath {
        prices: TransferPrices::new(transfer, &model.cpu.locked),
        links,
    };
    if from == to {
        return made(&cache.socket, [NONE; 2]);
    }
    if model.wiring == Wiring::Bus {
        return made(&cache.one_hop, [BUS, NONE]);
    }
    let link = |from: usize, to: usize| (from * sockets + to) as u16;
    let (board_from, board_to) = (from / per_board, to / per_board);
    if board_from != board_to {
        let boards = sockets / per_board;
        let link = sockets * sockets + board_from * boards + board_to;
        return made(&cache.board, [link as u16, NONE]);
    }
    let around = (to + per_board - from) % per_board;
    if model.wiring == Wiring::Full || around == 1 || around == per_board - 1 {
        return made(&cache.one_hop, [link(from, to), NONE]);
    }
    // A transfer over two hops on a ring of sockets always passes through the socket after `from`,
    // even if the path in the opposite direction is shorter.
    let next = board_from * per_board + (from + 1) % per_board;
    made(&cache.two_hops, [link(from, next), link(next, to)])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transfers_of_two_sockets_wait_for_one_bus_only() {
        let mut model = Model::plain(4, 1);
        let alone_ps = Fabric::new(&model).send(0, (0, 1), 1, TransferKind::Load);
        let second_ps = |model: &Model| {
            let mut fabric = Fabric::new(model);
            fabric.send(0, (0, 1), 1, TransferKind::Load);
            fabric.send(0, (2, 3), 1, TransferKind::Load)
        };
        assert_eq!(second_ps(&model), alone_ps);
        model.wiring = Wiring::Bus;
        assert_eq!(second_ps(&model), alone_ps + line_ps(&model.cache.link));
        let mut fabric = Fabric::new(&model);
        fabric.send(0, (3, 0), 1, TransferKind::Load);
        fabric.send(0, (1, 2), 2, TransferKind::Load);
        let [bus] = &fabric.link_use()[..] else { panic!("one bus, for both") };
        assert_eq!((bus.from, bus.to, bus.bytes), (0, 0, 3 * LINE_BYTES));
    }
}
