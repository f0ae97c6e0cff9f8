//! What `check` says about the pool and a machine.

use std::path::Path;

use anyhow::{Result, ensure};
use peerpod_operator::{NAMESPACE, install, provider::byom::CLOUD};
use testbed::{
    Settings,
    wait::{self, DEADLINE},
};

use super::Stand;
use crate::{
    provider::check::{check, findings, outcomes},
    support::without_operator,
};

#[test]
fn check_tries_the_pool_and_a_machine_and_names_what_is_missing() -> Result<()> {
    without_operator(async |testbed| {
        let dir = tempfile::tempdir()?;
        let stand = Stand::start(testbed, dir.path(), 0).await?;
        let kubeconfig = testbed.kubeconfig_of(install::NAME).await?.display().to_string();
        let environment = [("KUBECONFIG", kubeconfig.as_str())];
        let content = stand.pool.content().await?;
        wait::eventually("check finds nothing wrong", DEADLINE, async || {
            let (output, cloud) = check(dir.path(), &stand.settings(), &environment).await?;
            ensure!(output.status.success() && outcomes(&cloud) == ["works"; 3], "{cloud}");
            Ok(())
        })
        .await?;
        ensure!(stand.pool.content().await? == content && stand.told()?.is_none(), "check changes something");

        let (output, cloud) = check(dir.path(), &stand.settings(), &[]).await?;
        let says = ["KUBECONFIG", "no access to a cluster"];
        ensure!(says.iter().all(|it| cloud.to_string().contains(it)), "{cloud}");
        assert_eq!(output.status.code(), Some(3), "{cloud}");
        let (output, cloud) = check(dir.path(), &Settings::byom(Path::new("/nowhere")), &environment).await?;
        assert_eq!(output.status.code(), Some(3), "{cloud}");
        ensure!(findings(&cloud)[2].1.contains("/nowhere"), "{cloud}");

        stand.sshd.pause()?;
        let (output, cloud) = check(dir.path(), &stand.settings(), &environment).await?;
        assert_eq!(output.status.code(), Some(3), "{cloud}");
        ensure!(outcomes(&cloud) == ["works", "works", "fails"], "what was found out is lost: {cloud}");
        let hangs = &findings(&cloud)[2].1;
        ensure!(hangs.contains(&stand.address()) && hangs.contains("did not answer"), "{cloud}");

        let name = format!("rolebinding/{}-{CLOUD}", install::NAME);
        let namespace = format!("--namespace={NAMESPACE}");
        testbed.cluster().kubectl(&["delete", &name, &namespace]).await?;
        wait::eventually("check names the right that is missing", DEADLINE, async || {
            let (output, cloud) = check(dir.path(), &stand.settings(), &environment).await?;
            ensure!(
                output.status.code() == Some(3) && cloud.to_string().contains("get and update"),
                "{cloud}"
            );
            Ok(())
        })
        .await
    })
}
