//! The webhook reports in time when another program's certificate expires.

use std::{
    fs,
    net::SocketAddr,
    path::Path,
    process::Command,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context as _, Result, ensure};
use cluster::{
    address::loopback,
    process::{Lifetime, Process},
};
use rcgen::{CertificateParams, KeyPair, date_time_ymd};
use testbed::{
    http,
    wait::{self, DEADLINE},
};

use super::stage::READY;
use crate::support::{PROGRAM, run};

const EXPIRY: &str = "peerpod_operator_webhook_certificate_expiry_timestamp_seconds";
const OVERDUE: &str = "peerpod_operator_webhook_certificate_overdue_timestamp_seconds";

/// Writes a certificate of this age that is valid for `left` more seconds. Returns its time of expiry.
pub(super) fn show(dir: &Path, age: u64, left: u64) -> Result<u64> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let moment = |seconds| date_time_ymd(1970, 1, 1) + Duration::from_secs(seconds);
    let mut params = CertificateParams::new(["localhost".to_owned()])?;
    (params.not_before, params.not_after) = (moment(now - age), moment(now + left));
    let key = KeyPair::generate()?;
    fs::write(dir.join("key"), key.serialize_pem())?;
    fs::write(dir.join("certificate"), params.self_signed(&key)?.pem())?;
    Ok(now + left)
}

async fn until_told(metrics: SocketAddr, expiry: u64, overdue: u64) -> Result<()> {
    wait::eventually("the certificate that is shown is told", DEADLINE, async || {
        let (_, scraped) = http::get(metrics, "/metrics").await?;
        for line in [format!("{EXPIRY}{{}} {expiry}.0"), format!("{OVERDUE}{{}} {overdue}.0")] {
            ensure!(scraped.lines().any(|found| found == line), "{line} is not in:\n{scraped}");
        }
        Ok(())
    })
    .await
}

#[test]
fn a_certificate_that_is_not_replaced_in_time_is_warned_of_once() -> Result<()> {
    run(async {
        let (dir, address) = (tempfile::tempdir()?, loopback());
        let at = |port: u16| SocketAddr::from((address, port));
        let expires = show(dir.path(), 300, 100)?;
        let mut command = Command::new(PROGRAM);
        let arguments = ["--addr", "--health-addr", "--metrics-addr"].into_iter().zip([9443, 8081, 8080]);
        command.arg("webhook").args(arguments.map(|(flag, port)| format!("{flag}={}", at(port))));
        command.arg("--tls-cert").arg(dir.path().join("certificate"));
        command.arg("--tls-key").arg(dir.path().join("key"));
        let webhook = Process::start("webhook", &command, dir.path(), Lifetime::Owned)?;
        let lines = |words: &str| -> Result<usize> {
            Ok(fs::read_to_string(webhook.log())?.lines().filter(|line| line.contains(words)).count())
        };
        let (late, over) = ("the certificate is overdue for replacement", "the certificate has expired");
        // From now on a quarter of the certificate's life is left.
        until_told(at(8080), expires, expires - 100).await?;
        wait::eventually("it is said to be late", DEADLINE, async || {
            ensure!(lines(late)? == 1, "{}", webhook.log_tail());
            Ok(())
        })
        .await?;

        // The next certificate is valid, then overdue, then expired. The webhook logs each change once.
        let expires = show(dir.path(), 20, 8)?;
        until_told(at(8080), expires, expires - 7).await?;
        wait::eventually("its end is said", DEADLINE, async || {
            ensure!((lines(late)?, lines(over)?) == (2, 1), "{}", webhook.log_tail());
            Ok(())
        })
        .await?;
        let expires = show(dir.path(), 0, 400)?;
        until_told(at(8080), expires, expires - 100).await?;
        let told = fs::read_to_string(webhook.log())?;
        ensure!((lines(late)?, lines(over)?) == (2, 1), "{told}");
        ensure!(told.contains(&dir.path().join("certificate").display().to_string()), "its source: {told}");
        let status = webhook.stop(READY).await?.context("how it ended is not known")?;
        ensure!(status.success(), "{status}: {}", webhook.log_tail());
        Ok(())
    })
}
