//! Every packet of the client is one that virsh sends for the same work, byte by byte.
//!
//! Both do the same to a fresh daemon each, through a relay that records what the client sends. The known differences:
//!
//! - the serials; and that virsh looks objects up before each command, asks for features and registers for events;
//! - `CONNECT_LIST_ALL_DOMAINS`: virsh asks for active and inactive ones (flags 3), the client sets no filter (flags
//!   0), which libvirt documents to mean the same;
//! - `DOMAIN_UNDEFINE`: virsh falls back to it with daemons before 0.9.4 alone, and otherwise uses
//!   `DOMAIN_UNDEFINE_FLAGS` with flags 0, which has the same argument before the flags.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cluster::process::Lifetime;
use libvirt_client::{Client, ErrorCode, Options, UndefineFlags};
use peers::libvirt::Libvirtd;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{UnixListener, UnixStream};

const DOMAIN_UNDEFINE: u32 = 35;
const DOMAIN_UNDEFINE_FLAGS: u32 = 231;
const CONNECT_LIST_ALL_DOMAINS: u32 = 273;

const DOMAIN: &str = "<domain type='test'><name>vm</name><uuid>5d2bc7a8-0a6e-4a52-9c7b-2f6f3d8f1a01</uuid>\
                      <memory>8192</memory><os><type>hvm</type></os></domain>";
const POOL: &str = "<pool type='dir'><name>disks</name><uuid>5d2bc7a8-0a6e-4a52-9c7b-2f6f3d8f1a02</uuid>\
                    <target><path>/disks</path></target></pool>";
const VOLUME: &str = "<volume><name>vm-root.qcow2</name><capacity>1048576</capacity></volume>";

/// One command per procedure, on one connection.
const VIRSH: &str = "version --daemon
capabilities
pool-create pool.xml
vol-create disks volume.xml
pool-dumpxml disks
vol-list disks
vol-key /no/such/volume
define domain.xml
start vm
domstate 5d2bc7a8-0a6e-4a52-9c7b-2f6f3d8f1a01
dominfo vm
dumpxml vm
dumpxml vm --inactive
list --all
destroy vm
undefine vm --nvram
undefine vm
vol-delete vm-root.qcow2 --pool disks
";

async fn ours(client: &Client) {
    client.lib_version().await.unwrap();
    assert_eq!(client.hypervisor().await.unwrap(), "TEST");
    client.hypervisor_version().await.unwrap();
    assert_eq!(client.host_uuid().await.unwrap(), None, "the test driver has no host");
    let pool = client.pool_create(POOL).await.unwrap();
    assert_eq!(client.pool_lookup_by_name("disks").await.unwrap(), pool);
    assert!(client.pool_xml(&pool).await.unwrap().contains("<path>/disks</path>"));
    let volume = client.volume_create(&pool, VOLUME).await.unwrap();
    assert_eq!(client.pool_volumes(&pool).await.unwrap(), std::slice::from_ref(&volume));
    assert_eq!(client.volume_lookup_by_name(&pool, &volume.name).await.unwrap(), volume);
    let missing = client.volume_lookup_by_path("/no/such/volume").await.unwrap_err();
    assert_eq!(missing.code(), Some(ErrorCode::NoStorageVolume));
    let domain = client.domain_define(DOMAIN).await.unwrap();
    client.domain_create(&domain).await.unwrap();
    let domain = client.domain_lookup_by_uuid(domain.uuid).await.unwrap();
    client.domain_state(&domain).await.unwrap();
    assert!(client.domain_is_persistent(&domain).await.unwrap());
    client.domain_xml(&domain).await.unwrap();
    client.domain_xml_inactive(&domain).await.unwrap();
    client.domains().await.unwrap();
    client.domain_destroy(&domain).await.unwrap();
    let domain = client.domain_lookup_by_uuid(domain.uuid).await.unwrap();
    let refused = client.domain_undefine(&domain, UndefineFlags::NVRAM).await.unwrap_err();
    assert_eq!(refused.code(), Some(ErrorCode::InvalidArg), "the test driver has no NVRAM");
    client.domain_undefine_plain(&domain).await.unwrap();
    client.volume_delete(&volume).await.unwrap();
}

#[tokio::test]
async fn the_clients_packets_are_virshs() {
    let relay = Relay::start().await;
    let client = Client::new(relay.uri().parse().unwrap(), Options { connections: 1, ..Options::default() });
    ours(&client).await;
    let ours = relay.packets();

    let relay = Relay::start().await;
    virsh(&relay).await;
    let virshs = relay.packets();

    let mut procedures: Vec<_> = ours.iter().map(Packet::procedure).collect();
    let of = |procedure| virshs.iter().filter(move |packet| packet.procedure() == procedure);
    for packet in &ours {
        match packet.procedure() {
            CONNECT_LIST_ALL_DOMAINS => {
                // A list is wanted (1); flags 0 here, 3 there.
                assert_eq!(packet.payload(), [0, 0, 0, 1, 0, 0, 0, 0]);
                assert!(
                    of(CONNECT_LIST_ALL_DOMAINS).any(|theirs| theirs.payload() == [0, 0, 0, 1, 0, 0, 0, 3])
                );
            }
            DOMAIN_UNDEFINE => {
                let with_flags = [packet.payload(), &[0; 4]].concat();
                assert!(of(DOMAIN_UNDEFINE_FLAGS).any(|theirs| theirs.payload() == with_flags));
            }
            procedure => {
                let of_the_same: Vec<_> = of(procedure).collect();
                assert!(of_the_same.contains(&packet), "{packet:?} is not among virsh's {of_the_same:?}");
            }
        }
    }
    procedures.sort_unstable();
    procedures.dedup();
    // Every procedure of the client, except polkit's, which this daemon does not ask for.
    assert_eq!(
        procedures,
        [1, 3, 4, 7, 9, 11, 12, 14, 24, 35, 66, 76, 84, 88, 93, 94, 95, 97, 151, 157, 212, 231, 273, 282]
    );
}

async fn virsh(relay: &Relay) {
    for (name, xml) in [("pool.xml", POOL), ("volume.xml", VOLUME), ("domain.xml", DOMAIN)] {
        fs::write(relay.dir().join(name), xml).unwrap();
    }
    let mut virsh = tokio::process::Command::new("virsh")
        .args(["--connect", &relay.uri()])
        .current_dir(relay.dir())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    virsh.stdin.take().unwrap().write_all(VIRSH.as_bytes()).await.unwrap();
    tokio::time::timeout(Duration::from_secs(30), virsh.wait()).await.unwrap().unwrap();
}

/// What a client sent, without length and serial.
#[derive(PartialEq, Eq)]
struct Packet(Vec<u8>);

impl Packet {
    fn procedure(&self) -> u32 {
        u32::from_be_bytes(self.0[8..12].try_into().unwrap())
    }

    fn payload(&self) -> &[u8] {
        &self.0[24..]
    }
}

impl std::fmt::Debug for Packet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {:02x?}", self.procedure(), self.payload())
    }
}

/// A fresh daemon, and a socket in front of it that records what clients send.
struct Relay {
    _libvirtd: Libvirtd,
    dir: TempDir,
    packets: Arc<Mutex<Vec<Packet>>>,
}

impl Relay {
    async fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let libvirtd = Libvirtd::start(&dir.path().join("daemon"), Lifetime::Owned).await.unwrap();
        let listener = UnixListener::bind(dir.path().join("relay")).unwrap();
        let packets = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn(relay(listener, libvirtd.host().uri().socket().unwrap(), packets.clone()));
        Self { _libvirtd: libvirtd, dir, packets }
    }

    fn dir(&self) -> &Path {
        self.dir.path()
    }

    fn uri(&self) -> String {
        format!("test+unix:///default?socket={}", self.dir().join("relay").display())
    }

    fn packets(&self) -> Vec<Packet> {
        std::mem::take(&mut self.packets.lock().unwrap())
    }
}

async fn relay(listener: UnixListener, daemon: PathBuf, packets: Arc<Mutex<Vec<Packet>>>) {
    loop {
        let (client, _) = listener.accept().await.unwrap();
        let daemon = UnixStream::connect(&daemon).await.unwrap();
        let (mut from_client, mut to_client) = client.into_split();
        let (mut from_daemon, mut to_daemon) = daemon.into_split();
        tokio::spawn(async move { tokio::io::copy(&mut from_daemon, &mut to_client).await });
        let packets = packets.clone();
        tokio::spawn(async move {
            while let Ok(length) = from_client.read_u32().await {
                let mut bytes = vec![0; length as usize - 4];
                from_client.read_exact(&mut bytes).await.unwrap();
                to_daemon.write_u32(length).await.unwrap();
                to_daemon.write_all(&bytes).await.unwrap();
                // The serial.
                bytes[16..20].fill(0);
                packets.lock().unwrap().push(Packet(bytes));
            }
        });
    }
}
