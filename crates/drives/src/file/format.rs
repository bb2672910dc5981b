//! Recognises files that contain a disk image in a container format, by their first bytes.
//!
//! A drive serves the bytes of its file as they are. For a qcow2 image, these are the bytes of the
//! container, and writing to them destroys the disk inside. So opening such a file produces a
//! warning with a command that serves the disk inside. Sources: the specifications of the formats;
//! `qemu/block/*.c` for VMDK and VDI.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use super::FileConfig;
use crate::common::store_file::open_store;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContainerServer {
    /// qemu-nbd can serve the disk, with this format name.
    Qemu(&'static str),
    /// The disk can be served only after the file is unpacked. Contains the command that unpacks
    /// it.
    Unpack(&'static str),
}

/// Recognises one container format. The fields are the format's name, the byte offset of its magic
/// number, the magic number, and how to serve the disk in the container.
type Mark = (&'static str, u64, &'static [u8], ContainerServer);

const MARKS: [Mark; 15] = [
    ("qcow2 image", 0, b"QFI\xfb\0\0\0\x02", ContainerServer::Qemu("qcow2")),
    ("qcow2 image", 0, b"QFI\xfb\0\0\0\x03", ContainerServer::Qemu("qcow2")),
    ("qcow image", 0, b"QFI\xfb\0\0\0\x01", ContainerServer::Qemu("qcow")),
    ("QED image", 0, b"QED\0", ContainerServer::Qemu("qed")),
    ("VMDK image", 0, b"KDMV", ContainerServer::Qemu("vmdk")),
    ("VMDK image", 0, b"COWD", ContainerServer::Qemu("vmdk")),
    ("VMDK descriptor", 0, b"# Disk DescriptorFile", ContainerServer::Qemu("vmdk")),
    ("VHDX image", 0, b"vhdxfile", ContainerServer::Qemu("vhdx")),
    ("VHD image", 0, b"conectix", ContainerServer::Qemu("vpc")),
    ("VDI image", 0x40, b"\x7f\x10\xda\xbe", ContainerServer::Qemu("vdi")),
    ("Parallels image", 0, b"WithoutFreeSpace", ContainerServer::Qemu("parallels")),
    ("gzip file", 0, b"\x1f\x8b\x08", ContainerServer::Unpack("gzip -d")),
    ("xz file", 0, b"\xfd7zXZ\0", ContainerServer::Unpack("xz -d")),
    ("zstd file", 0, b"\x28\xb5\x2f\xfd", ContainerServer::Unpack("zstd -d")),
    ("zip file", 0, b"PK\x03\x04", ContainerServer::Unpack("unzip")),
];
/// Magic number that begins the last sector of a fixed-size VHD image, which is a plain disk
/// followed by this sector.
const VHD_FOOTER: &[u8] = b"conectix";

pub(super) fn note(config: &FileConfig, size_bytes: u64) -> Option<String> {
    // Opens the file again without O_DIRECT, because reads through the drive's own descriptor may
    // need aligned memory.
    let at = config.opened_at.as_ref().unwrap_or(&config.path);
    let file = open_store(at, OpenOptions::new().read(true), 0).ok()?;
    let (what, inside) = container(&file, size_bytes)?;
    let quoted = format!("'{}'", config.path.to_string_lossy().replace('\'', "'\\''"));
    let better = match inside {
        ContainerServer::Qemu(format) => format!(
            "for the disk inside use `qemu-nbd --persistent --shared=0 --format={format} \
             --socket=/tmp/disk.sock {quoted}`"
        ),
        ContainerServer::Unpack(command) => format!("unpack it first: `{command} {quoted}`"),
    };
    Some(config.message(format_args!(
        "this is a {what}; its bytes are served as they are, not the disk inside, which writes \
         would destroy; {better}"
    )))
}

fn container(file: &File, size_bytes: u64) -> Option<(&'static str, ContainerServer)> {
    let mut head = [0; 512];
    let length = file.read_at(&mut head, 0).ok()?;
    let begins = |place: u64, mark: &[u8]| {
        head[..length].get(place as usize..).is_some_and(|rest| rest.starts_with(mark))
    };
    let known = MARKS.iter().find(|(_, place, mark, _)| begins(*place, mark));
    if let Some((what, _, _, inside)) = known {
        return Some((what, *inside));
    }
    let mut foot = [0; 8];
    file.read_exact_at(&mut foot, size_bytes.checked_sub(512)?).ok()?;
    (foot == VHD_FOOTER).then_some(("VHD image", ContainerServer::Qemu("vpc")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(bytes: &[u8]) -> Option<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("it's");
        std::fs::write(&path, bytes).unwrap();
        note(&FileConfig { path, ..FileConfig::default() }, bytes.len() as u64)
    }

    #[test]
    fn container_is_known_by_its_magic_and_named_with_a_server() {
        for (what, place, mark, inside) in MARKS {
            let mut bytes = vec![0; 4096];
            bytes[place as usize..][..mark.len()].copy_from_slice(mark);
            let text = said(&bytes).unwrap();
            assert!(text.contains(&format!("this is a {what};")), "{text}");
            let command = match inside {
                ContainerServer::Qemu(format) => format!("--format={format} "),
                ContainerServer::Unpack(command) => format!("`{command} "),
            };
            assert!(text.contains(&command) && text.contains("it'\\''s'`"), "{text}");
        }
        let mut fixed = vec![0; 4096];
        fixed[3584..3592].copy_from_slice(VHD_FOOTER);
        assert!(said(&fixed).unwrap().contains("--format=vpc"));
    }

    #[test]
    fn plain_disks_and_short_files_are_no_containers() {
        let mut boot = vec![0; 4096];
        boot[510..512].copy_from_slice(b"\x55\xaa");
        for plain in [&boot[..], &[], b"QFI", &[0; 511]] {
            assert_eq!(said(plain), None);
        }
    }
}
