//! Access to a Unix socket: what its file says, and who the peer is.
//!
//! Owns the settings and the question to the kernel who is at the other end. Called by the servers
//! when they bind and when they accept; calls getsockopt.
//!
//! Invariant: a peer is judged by the credentials it had when it connected, which it cannot forge
//! and which later changes of it do not alter.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

/// Most supplementary groups that are asked for.
const GROUPS_MAX: usize = 1024;

/// Users and groups that may connect to a Unix socket.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// Mode of its file from the moment that it is there; none: what the umask leaves.
    pub mode: Option<u32>,
    /// User that the file belongs to, by number; none: whoever makes it.
    pub owner: Option<u32>,
    /// Group that the file belongs to, by number; none: that of whoever makes it.
    pub group: Option<u32>,
    /// Users and groups that are let in after connecting; none: whoever may open the file.
    pub allow: Option<Allow>,
}

impl SocketAccess {
    /// A file of this mode, or as the umask leaves it.
    #[must_use]
    pub fn with_mode(mode: Option<u32>) -> SocketAccess {
        SocketAccess { mode, ..SocketAccess::default() }
    }

    /// Whether something is set that a socket without a file of this process cannot have.
    #[must_use]
    pub fn is_of_a_file(&self) -> bool {
        self.mode.is_some() || self.owner.is_some() || self.group.is_some()
    }

    /// Returns true if a socket's file is the same with other access; clients that are let in after
    /// connecting may differ.
    pub(crate) fn has_same_file(&self, other: &SocketAccess) -> bool {
        (self.mode, self.owner, self.group) == (other.mode, other.owner, other.group)
    }
}

/// Users and groups that are let in; one of either is enough.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Allow {
    /// Users by number.
    pub users: Vec<u32>,
    /// Groups by number: the peer's own one or one of its others.
    pub groups: Vec<u32>,
}

impl Allow {
    /// Whether the peer of a connected Unix socket is let in.
    ///
    /// # Errors
    /// If the peer is not let in; the text says which process and user it is.
    pub fn check(&self, socket: RawFd) -> Result<(), String> {
        let Some(peer) = credentials(socket) else {
            return Err("the system does not say who it is".to_owned());
        };
        let is_in = |group: &u32| self.groups.contains(group);
        if self.users.contains(&peer.uid) || is_in(&peer.gid) {
            return Ok(());
        }
        if !self.groups.is_empty() && groups(socket).iter().any(is_in) {
            return Ok(());
        }
        Err(format!("it is process {} of user {} and group {}", peer.pid, peer.uid, peer.gid))
    }
}

fn credentials(socket: RawFd) -> Option<libc::ucred> {
    let mut peer = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as u32;
    let place = (&raw mut peer).cast();
    // SAFETY: value and length are live locals, which the kernel fills.
    let result = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERCRED, place, &raw mut len)
    };
    // A socket that is no Unix socket has no peer with a user.
    (result == 0 && peer.uid != u32::MAX).then_some(peer)
}

/// The peer's supplementary groups; none where the system does not tell.
fn groups(socket: RawFd) -> Vec<u32> {
    let mut groups = vec![0u32; GROUPS_MAX];
    let mut len = (groups.len() * size_of::<u32>()) as u32;
    let place = groups.as_mut_ptr().cast();
    // SAFETY: the vector has room for as many bytes as the length says.
    let result = unsafe {
        libc::getsockopt(socket, libc::SOL_SOCKET, libc::SO_PEERGROUPS, place, &raw mut len)
    };
    groups.truncate(if result == 0 { len as usize / size_of::<u32>() } else { 0 });
    groups
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_peer_is_let_in_by_its_user_or_by_any_of_its_groups() {
        let (ours, _theirs) = UnixStream::pair().unwrap();
        let check = |users: &[u32], groups: &[u32]| {
            let allow = Allow { users: users.to_vec(), groups: groups.to_vec() };
            allow.check(ours.as_raw_fd())
        };
        let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
        assert_eq!(check(&[uid], &[]), Ok(()));
        assert_eq!(check(&[], &[gid]), Ok(()));
        assert_eq!(check(&[uid + 1, uid], &[]), Ok(()));
        for other in groups(ours.as_raw_fd()) {
            assert_eq!(check(&[], &[other]), Ok(()));
        }
        let pid = std::process::id();
        let who = format!("it is process {pid} of user {uid} and group {gid}");
        assert_eq!(check(&[uid + 1], &[gid + 54_321]), Err(who.clone()));
        assert_eq!(check(&[], &[]), Err(who));
    }

    #[test]
    fn a_tcp_peer_is_nobody_that_can_be_let_in() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let allow = Allow { users: vec![0, u32::MAX], groups: vec![0, u32::MAX] };
        assert!(allow.check(client.as_raw_fd()).is_err());
    }
}
