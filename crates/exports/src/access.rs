//! Access to a Unix socket: owner, group and mode of its file, and the peers that may connect.
//!
//! Invariant: access depends on the credentials that the peer had when it connected. The peer
//! cannot forge these credentials, and a later change of its user does not alter them.
#![allow(unsafe_code)]

use std::os::fd::RawFd;

const GROUPS_MAX: usize = 1024;

/// Owner, group and mode of a Unix socket's file, and the users that may connect to it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SocketAccess {
    /// Mode of the socket's file, set before any client can connect. `None` leaves the mode to the
    /// umask.
    pub mode: Option<u32>,
    /// User ID of the file's owner. `None` means the user of the process that creates the socket.
    pub owner: Option<u32>,
    /// Group ID of the file. `None` means the group of the process that creates the socket.
    pub group: Option<u32>,
    /// Users and groups that may connect. `None` allows everybody who may open the file.
    pub allow: Option<AllowedPeers>,
}

impl SocketAccess {
    /// Returns access limited only by the file's mode, or by the umask if `mode` is `None`.
    #[must_use]
    pub fn with_mode(mode: Option<u32>) -> SocketAccess {
        SocketAccess { mode, ..SocketAccess::default() }
    }

    /// Returns true if mode, owner or group is set. These settings apply to a Unix socket with a
    /// path, which has a file.
    #[must_use]
    pub fn is_of_a_file(&self) -> bool {
        self.mode.is_some() || self.owner.is_some() || self.group.is_some()
    }

    /// Returns true if mode, owner and group of the socket's file are equal in `self` and `other`.
    pub(crate) fn has_same_file(&self, other: &SocketAccess) -> bool {
        (self.mode, self.owner, self.group) == (other.mode, other.owner, other.group)
    }
}

/// Users and groups that may connect. A peer may connect if it matches one of them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AllowedPeers {
    /// User IDs.
    pub users: Vec<u32>,
    /// Group IDs, compared with the peer's primary and supplementary groups.
    pub groups: Vec<u32>,
}

impl AllowedPeers {
    /// Checks the peer of a connected Unix socket.
    ///
    /// # Errors
    /// Returns a text with the peer's process, user and group if the peer may not connect.
    pub fn check(&self, socket: RawFd) -> Result<(), String> {
        let Some(peer) = credentials(socket) else {
            return Err("the system does not report the client's process".to_owned());
        };
        let is_in = |group: &u32| self.groups.contains(group);
        if self.users.contains(&peer.uid) || is_in(&peer.gid) {
            return Ok(());
        }
        if !self.groups.is_empty() && groups(socket).iter().any(is_in) {
            return Ok(());
        }
        Err(format!("process {} of user {} and group {}", peer.pid, peer.uid, peer.gid))
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
    // The kernel reports the user ID `u32::MAX` for sockets other than Unix sockets.
    (result == 0 && peer.uid != u32::MAX).then_some(peer)
}

/// Returns the peer's supplementary groups, or an empty list if the kernel does not report them.
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
            let allow = AllowedPeers { users: users.to_vec(), groups: groups.to_vec() };
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
        let who = format!("process {pid} of user {uid} and group {gid}");
        assert_eq!(check(&[uid + 1], &[gid + 54_321]), Err(who.clone()));
        assert_eq!(check(&[], &[]), Err(who));
    }

    #[test]
    fn a_tcp_peer_is_nobody_that_can_be_let_in() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let client = std::net::TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let allow = AllowedPeers { users: vec![0, u32::MAX], groups: vec![0, u32::MAX] };
        assert!(allow.check(client.as_raw_fd()).is_err());
    }
}
