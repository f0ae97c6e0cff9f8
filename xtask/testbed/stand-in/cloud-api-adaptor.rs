//! Stands in for cloud-api-adaptor where its DaemonSet is what matters: it answers the startup probe, and makes no VMs.

use std::io::{self, BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::time::Duration;

/// Where cloud-api-adaptor answers unless `PROBE_PORT` says otherwise.
const PORT: u16 = 8000;

/// Nobody who probes takes longer.
const PATIENCE: Duration = Duration::from_secs(1);

fn main() -> io::Result<()> {
    let port = std::env::var("PROBE_PORT").ok().and_then(|port| port.parse().ok()).unwrap_or(PORT);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    println!("A stand-in for cloud-api-adaptor: it answers GET /startup at port {port}, and makes no VMs.");
    for connection in listener.incoming() {
        if let Err(error) = connection.and_then(answer) {
            eprintln!("a probe was not answered: {error}");
        }
    }
    Ok(())
}

fn answer(connection: TcpStream) -> io::Result<()> {
    connection.set_read_timeout(Some(PATIENCE))?;
    let mut lines = BufReader::new(&connection).lines();
    let request = lines.next().transpose()?.unwrap_or_default();
    // The rest of the request is headers, up to an empty line.
    while lines.next().transpose()?.is_some_and(|line| !line.is_empty()) {}
    let status = if request.starts_with("GET /startup ") { "200 OK" } else { "404 Not Found" };
    write!(&connection, "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
}
