//! What a program that is linked as a release finds in the image. Clouds and libvirt hosts are reached by name.
#![allow(clippy::expect_used, clippy::unwrap_used, reason = "a test fails by panicking")]

use std::{
    collections::BTreeMap,
    env, fs,
    io::Cursor,
    net::UdpSocket,
    path::Path,
    process::{Command, Output},
    thread,
};

use anyhow::{Context as _, Result, ensure};
use image::{Compression, closure, operator};
use serde_json::Value;
use tar::Archive;

/// Prints the addresses of the host that its argument names, as the operator's clients look it up.
const PROGRAM: &str = r#"
use std::net::ToSocketAddrs as _;
fn main() {
    let host = std::env::args().nth(1).expect("a host");
    match (host.as_str(), 443).to_socket_addrs() {
        Ok(addresses) => addresses.for_each(|address| println!("{}", address.ip())),
        Err(error) => panic!("{host}: {error}"),
    }
}
"#;

/// Where the name server of this test listens.
const SERVER: &str = "127.83.53.1";
const BY_SERVER: &str = "192.0.2.53";
const BY_FILE: &str = "192.0.2.7";

/// The type of a question for an IPv4 address.
const A: &[u8] = &[0, 1];

/// Answers every question for an IPv4 address by [`BY_SERVER`], and every other one by nothing.
fn serve(socket: &UdpSocket) -> Result<()> {
    let mut question = [0; 512];
    loop {
        let (length, from) = socket.recv_from(&mut question)?;
        let question = &question[..length];
        // The name begins after the head of 12 bytes, and ends by an empty label. Type and class follow.
        let name = question[12..].iter().position(|byte| *byte == 0).context("a name ends")?;
        let end = 12 + name + 5;
        let kind = &question[end - 4..end - 2];
        let mut answer = question[..end].to_vec();
        answer[2..12].copy_from_slice(&[0x81, 0x80, 0, 1, 0, u8::from(kind == A), 0, 0, 0, 0]);
        if kind == A {
            // The name of the question, an IPv4 address of the Internet, for a minute, 4 bytes.
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4]);
            answer.extend(BY_SERVER.parse::<std::net::Ipv4Addr>()?.octets());
        }
        socket.send_to(&answer, from)?;
    }
}

/// Unpacks the image's only layer.
fn unpack(archive: &Path, root: &Path) -> Result<()> {
    let dir = tempfile::tempdir()?;
    Archive::new(fs::File::open(archive)?).unpack(dir.path())?;
    let blob = |descriptor: &Value| -> Result<Vec<u8>> {
        let digest = descriptor["digest"].as_str().and_then(|it| it.strip_prefix("sha256:"));
        Ok(fs::read(dir.path().join("blobs/sha256").join(digest.context("a digest")?))?)
    };
    let index: Value = serde_json::from_slice(&fs::read(dir.path().join("index.json"))?)?;
    let manifest: Value = serde_json::from_slice(&blob(&index["manifests"][0])?)?;
    Archive::new(Cursor::new(blob(&manifest["layers"][0])?)).unpack(root)?;
    Ok(())
}

fn run(command: &mut Command) -> Result<Output> {
    let output = command.output().with_context(|| format!("running {command:?}"))?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(output)
}

#[test]
fn a_program_without_shared_libraries_finds_hosts_by_file_and_by_name_server() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (source, program) = (dir.path().join("find.rs"), dir.path().join("find"));
    fs::write(&source, PROGRAM)?;
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    run(rustc.args(["--edition=2024", "-Ctarget-feature=+crt-static", "-o"]).arg(&program).arg(&source))?;
    assert_eq!(closure(&program)?, Vec::<std::path::PathBuf>::new(), "it needs shared libraries");

    let (archive, root) = (dir.path().join("image.tar"), dir.path().join("root"));
    operator(&program, "find:test", &BTreeMap::new())?.write(&archive, Compression::None)?;
    unpack(&archive, &root)?;
    // A kubelet writes these two files into every container.
    fs::write(root.join("etc/hosts"), format!("{BY_FILE} alias.example.com\n"))?;
    fs::write(root.join("etc/resolv.conf"), format!("nameserver {SERVER}\n"))?;
    let socket = UdpSocket::bind((SERVER, 53)).context("this test needs root, to listen at port 53")?;
    // It ends with this process.
    thread::spawn(move || serve(&socket));

    let addresses = |host: &str| -> Result<String> {
        let output = run(Command::new("chroot").arg(&root).args(["/usr/bin/peerpod-operator", host]))?;
        Ok(String::from_utf8(output.stdout)?.trim().to_owned())
    };
    assert_eq!(addresses("alias.example.com")?, BY_FILE);
    assert_eq!(addresses("ec2.eu-central-1.example.com")?, BY_SERVER);
    Ok(())
}
