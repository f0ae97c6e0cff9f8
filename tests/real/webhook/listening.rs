//! The default listen address of a program, in network namespaces of their own.

use std::process::Command;

use anyhow::{Result, ensure};

use super::expiry;
use crate::support::PROGRAM;

/// Runs a program on a system with these values of `bindv6only` and `disable_ipv6`, and prints where it listens.
const RUN: &str = r#"
ip link set lo up
echo "$1" >/proc/sys/net/ipv6/bindv6only
echo "$2" >/proc/sys/net/ipv6/conf/all/disable_ipv6
shift 2
"$@" >&2 &
program=$!
reaches() { (exec 3<>"/dev/tcp/$1/$2") 2>/dev/null; }
until reaches 127.0.0.1 9443; do kill -0 "$program" || exit; sleep 0.1; done
for host in 127.0.0.1 ::1; do
    for port in 8080 8081 9443; do
        if reaches "$host" "$port"; then echo "$host $port"; fi
    done
done
kill "$program"
wait "$program"
"#;

/// The addresses where the webhook listens.
fn reached(only_ipv6: bool, no_ipv6: bool) -> Result<Vec<String>> {
    let dir = tempfile::tempdir()?;
    expiry::show(dir.path(), 0, 3600)?;
    let mut command = Command::new("unshare");
    command.args(["--net", "--map-root-user", "timeout", "60", "bash", "-euc", RUN, "bash"]);
    command.args([only_ipv6, no_ipv6].map(|is| u8::from(is).to_string()));
    command.args([PROGRAM, "webhook", "--tls-cert"]).arg(dir.path().join("certificate"));
    let output = command.arg("--tls-key").arg(dir.path().join("key")).output()?;
    ensure!(output.status.success(), "{}: {}", output.status, String::from_utf8_lossy(&output.stderr));
    Ok(String::from_utf8(output.stdout)?.lines().map(str::to_owned).collect())
}

const BY_IPV4: [&str; 3] = ["127.0.0.1 8080", "127.0.0.1 8081", "127.0.0.1 9443"];
const BY_IPV6: [&str; 3] = ["::1 8080", "::1 8081", "::1 9443"];

#[test]
fn it_is_reached_by_both_protocols_with_any_system_default() -> Result<()> {
    for only_ipv6 in [false, true] {
        assert_eq!(reached(only_ipv6, false)?, [BY_IPV4, BY_IPV6].concat(), "bindv6only is {only_ipv6}");
    }
    Ok(())
}

#[test]
fn without_ipv6_it_is_reached_by_ipv4() -> Result<()> {
    assert_eq!(reached(false, true)?, BY_IPV4);
    Ok(())
}
