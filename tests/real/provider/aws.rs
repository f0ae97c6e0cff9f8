//! Amazon EC2: answers that never count as absence, refusals, and the operator's credentials.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use peerpod_operator::provider::{
    Claim, Error, ErrorClass, InstanceId, Provider, Stage,
    aws::{CLOUD, POLICY},
    cloud::RecordedPlace,
};
use peers::{
    Does, HttpRelay,
    aws::{Moto, REGION},
};
use serde_json::{Value, json};
use tempfile::TempDir;
use testbed::{Settings, vm_name};

use super::{
    check::{check, findings, outcomes},
    is_doubt, own,
};
use crate::support::run;

/// The account that moto simulates.
const ACCOUNT: &str = "123456789012";

/// EC2's answer with an empty list.
const EMPTY: &str = "<DescribeInstancesResponse><reservationSet/></DescribeInstancesResponse>";

/// An EC2 behind a relay, and a user there with the rights that deletions need.
struct Aws {
    dir: TempDir,
    moto: Moto,
    relay: HttpRelay,
    key: (String, String),
}

impl Aws {
    async fn start() -> Result<Self> {
        let dir = tempfile::tempdir()?;
        let moto = Moto::start(dir.path()).await?;
        let relay = HttpRelay::start(moto.api()).await?;
        let key = moto.user(POLICY).await?;
        Ok(Self { dir, moto, relay, key })
    }

    fn settings(&self) -> Settings {
        Settings::aws(self.relay.address(), Some(self.key.clone()))
    }

    /// A new provider without any cached state.
    fn open(&self) -> Result<Box<dyn Provider>> {
        Ok(self.settings().open()?)
    }

    async fn describe(&self, id: &str) -> Result<Result<Stage, Error>> {
        let described = self.open()?.describe(&InstanceId::of(&CLOUD, id)?, &Claim::default()).await;
        Ok(described.map(|vm| vm.stage))
    }

    /// The actions that EC2 was asked for so far.
    fn actions(&self) -> Vec<String> {
        let action =
            |body: String| body.split('&').find_map(|part| part.strip_prefix("Action=").map(str::to_owned));
        let actions = self.relay.seen().into_iter().filter_map(|seen| action(seen.body));
        actions.filter(|action| action != "GetCallerIdentity").collect()
    }

    fn answer(&self, status: u16, body: &str) {
        let about_vms = |seen: &peers::Seen| !seen.body.contains("GetCallerIdentity");
        self.relay.rule(about_vms, Does::Answer { status, headers: Vec::new(), body: body.to_owned() });
    }
}

#[test]
fn a_deletion_takes_four_requests() -> Result<()> {
    run(async {
        let aws = Aws::start().await?;
        let id = aws.moto.make(&vm_name("web"), "bare").await?;
        let provider = aws.open()?;
        let accepted = provider.delete(&own(&*provider, &CLOUD, &id, "web").await?).await?;
        ensure!(!accepted.check_again_after.is_zero(), "it asks again at once");
        let gone = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
        ensure!(gone.is_err_and(|error| error.class == ErrorClass::NotFound));
        assert_eq!(
            aws.actions(),
            ["DescribeInstances", "TerminateInstances", "DescribeInstances", "DescribeTags"]
        );
        // The provider asks only once which account its credentials belong to.
        assert_eq!(aws.relay.seen().len(), 5);
        Ok(())
    })
}

#[test]
fn an_address_that_something_else_uses_stays_with_it() -> Result<()> {
    run(async {
        let aws = Aws::start().await?;
        let id = aws.moto.make(&vm_name("web"), "remains").await?;
        let other = aws.moto.make("database", "bare").await?;
        aws.moto.lend(&id, Some(&other)).await?;
        let provider = aws.open()?;
        let refused = provider.delete(&own(&*provider, &CLOUD, &id, "web").await?).await;
        let error = refused.err().context("the address was released")?;
        ensure!(error.class == ErrorClass::Refused, "{error}");
        // The interface, which nothing uses, is deleted.
        ensure!(aws.moto.left(&id).await?.belongings == 1);
        ensure!(!aws.actions().contains(&"ReleaseAddress".to_owned()), "{:?}", aws.actions());
        // Once it is free again, it is released.
        aws.moto.lend(&id, None).await?;
        provider.delete(&own(&*provider, &CLOUD, &id, "web").await?).await?;
        ensure!(aws.moto.left(&id).await?.belongings == 0);
        Ok(())
    })
}

#[test]
fn ambiguous_answers_do_not_count_as_absence() -> Result<()> {
    const NOT_FOUND: &str = "<Response><Errors><Error><Code>InvalidInstanceID.NotFound</Code><Message>no</Message>\
                             </Error></Errors></Response>";
    run(async {
        let aws = Aws::start().await?;
        let id = aws.moto.make(&vm_name("web"), "bare").await?;
        let untagged = format!(
            "<DescribeInstancesResponse><reservationSet><item><instancesSet><item><instanceId>{id}</instanceId><instanceState>\
             <name>pending</name></instanceState></item></instancesSet></item></reservationSet></DescribeInstancesResponse>"
        );
        let doubted = async |what: &str, class: ErrorClass| -> Result<()> {
            is_doubt(what, aws.describe(&id).await?, class)?;
            aws.relay.forget_rules();
            Ok(())
        };
        for (what, status, body, class) in [
            ("no list", 200, "<DescribeInstancesResponse/>", ErrorClass::Transient),
            ("no answer of EC2", 200, "<html>hello", ErrorClass::Transient),
            ("JSON", 200, "{}", ErrorClass::Transient),
            ("no tags yet", 200, &*untagged, ErrorClass::Refused),
            ("a proxy's 404", 404, "<html>not found</html>", ErrorClass::Invalid),
            (
                "no rights",
                403,
                "<Response><Errors><Error><Code>UnauthorizedOperation</Code></Error></Errors></Response>",
                ErrorClass::Unauthorized,
            ),
            (
                "an outage",
                503,
                "<Response><Errors><Error><Code>Unavailable</Code></Error></Errors></Response>",
                ErrorClass::Transient,
            ),
        ] {
            aws.answer(status, body);
            doubted(what, class).await?;
        }
        // Nothing else of the instance is left, so only this answer keeps it from counting as absent.
        let answer = |status, body: &str| Does::Answer { status, headers: Vec::new(), body: body.to_owned() };
        let another = untagged.replace(&id, "i-0fffffffffffffff0");
        let no_whole_item = "<DescribeInstancesResponse><reservationSet><item><instancesSet/></item></reservationSet>\
                             </DescribeInstancesResponse>";
        for (what, body) in [("another instance", &*another), ("no instance in an item", no_whole_item)] {
            aws.relay.rule(|seen| seen.body.contains("DescribeInstances"), answer(200, body));
            doubted(what, ErrorClass::Transient).await?;
        }
        aws.relay.rule(|seen| seen.body.contains("DescribeInstances"), Does::CutOff);
        doubted("half an answer", ErrorClass::Transient).await?;
        // EC2 does not find the instance, and the provider does not know whether anything is left of it.
        aws.relay.rule(|seen| seen.body.contains("DescribeInstances"), answer(400, NOT_FOUND));
        aws.relay.rule(|seen| seen.body.contains("DescribeTags"), Does::CutOff);
        doubted("remains that are not known", ErrorClass::Transient).await?;
        aws.relay.rule(|seen| seen.body.contains("DescribeInstances"), answer(400, NOT_FOUND));
        aws.relay.rule(|seen| seen.body.contains("DescribeTags"), answer(200, EMPTY));
        doubted("the answer to another action", ErrorClass::Transient).await?;
        // Credentials of another account cannot see a live instance.
        let here = format!("{REGION} http://{}", aws.relay.address());
        for (account, there) in [(ACCOUNT, true), ("999999999999", false)] {
            let recorded = RecordedPlace::former(&here, Some(account));
            let provider = aws.settings().open_at(Some(recorded))?;
            let described = provider.describe(&InstanceId::of(&CLOUD, &id)?, &Claim::default()).await;
            match described {
                Ok(vm) if there && vm.stage == Stage::Present => {}
                Err(error) if !there && error.class == ErrorClass::Invalid => {
                    ensure!(
                        error.to_string().contains("another AWS account")
                            && !error.to_string().contains(ACCOUNT)
                    );
                }
                described => anyhow::bail!("{account}: {described:?}"),
            }
        }
        assert_eq!(aws.open()?.identity().await?.as_deref(), Some(ACCOUNT));
        ensure!(aws.moto.left(&id).await?.vm, "the VM is gone");
        Ok(())
    })
}

#[test]
fn an_instance_that_was_terminated_long_ago_is_absent_once_nothing_bears_its_identifier() -> Result<()> {
    run(async {
        let aws = Aws::start().await?;
        let id = aws.moto.make(&vm_name("web"), "remains").await?;
        // So EC2 answers about it, instead of with an error.
        let long_ago = |seen: &peers::Seen| seen.body.contains("DescribeInstances");
        aws.relay.rule(long_ago, Does::Answer { status: 200, headers: Vec::new(), body: EMPTY.to_owned() });
        let provider = aws.open()?;
        let remains = own(&*provider, &CLOUD, &id, "web").await?;
        assert!(matches!(remains.vm().stage, Stage::Remains(_)), "{:?}", remains.vm());
        provider.delete(&remains).await?;
        let gone = aws.describe(&id).await?;
        ensure!(gone.as_ref().is_err_and(|error| error.class == ErrorClass::NotFound), "{gone:?}");
        ensure!(aws.moto.left(&id).await?.belongings == 0);
        Ok(())
    })
}

#[test]
fn check_names_the_one_permission_that_is_missing() -> Result<()> {
    run(async {
        let aws = Aws::start().await?;
        let live = aws.moto.make(&vm_name("web"), "bare").await?;
        let (output, cloud) = check(aws.dir.path(), &aws.settings(), &[]).await?;
        ensure!(output.status.success() && outcomes(&cloud).iter().all(|it| it == "works"), "{cloud}");
        let policy: Value = serde_json::from_str(POLICY)?;
        let actions = policy["Statement"][0]["Action"].as_array().cloned().unwrap_or_default();
        ensure!(actions.len() == 7, "{policy}");
        for missing in &actions {
            let mut rest = policy.clone();
            rest["Statement"][0]["Action"] = actions.iter().filter(|it| *it != missing).cloned().collect();
            let key = aws.moto.user(&rest.to_string()).await?;
            let (output, cloud) =
                check(aws.dir.path(), &Settings::aws(aws.relay.address(), Some(key)), &[]).await?;
            assert_eq!(output.status.code(), Some(3), "{missing}: {cloud}");
            let failed: Vec<_> =
                findings(&cloud).into_iter().filter(|(outcome, _)| outcome == "fails").collect();
            let [(_, text)] = &failed[..] else { anyhow::bail!("{missing}: {cloud}") };
            let action = missing.as_str().unwrap_or_default().trim_start_matches("ec2:");
            ensure!(text.contains(action), "{missing}: {text}");
        }
        let states = aws.actions();
        ensure!(states.contains(&"TerminateInstances".to_owned()), "{states:?}");
        let instances = aws.relay.seen().into_iter().filter(|seen| seen.body.contains("Action=Terminate"));
        let is_harmless = |body: &str| body.contains("DryRun=true") && !body.contains(&live);
        ensure!(instances.into_iter().all(|seen| is_harmless(&seen.body)), "check terminates");
        Ok(())
    })
}

#[test]
fn credentials_come_from_the_settings_the_pod_or_the_node() -> Result<()> {
    run(async {
        let aws = Aws::start().await?;
        aws.moto.make(&vm_name("web"), "bare").await?;
        let none = Settings::aws(aws.relay.address(), None);
        let works = async |by: &str, settings: &Settings, environment: &[(&str, &str)]| -> Result<()> {
            let (_, cloud) = check(aws.dir.path(), settings, environment).await?;
            ensure!(
                outcomes(&cloud).iter().all(|it| it == "works") && cloud.to_string().contains(by),
                "{by}: {cloud}"
            );
            Ok(())
        };
        works("an access key", &aws.settings(), &[]).await?;

        let token = aws.dir.path().join("token");
        fs::write(&token, "a.projected.token\n")?;
        let token = token.display().to_string();
        let role = aws.moto.role(POLICY).await?;
        aws.moto.rights(false).await?;
        let injected = [("AWS_ROLE_ARN", &*role), ("AWS_WEB_IDENTITY_TOKEN_FILE", &*token)];
        works("a token of the ServiceAccount", &none, &injected).await?;
        // cloud-api-adaptor makes VMs in the region that EKS sets with the role.
        let elsewhere = [&injected[..], &[("AWS_REGION", "us-east-1")][..]].concat();
        let (output, cloud) = check(aws.dir.path(), &none, &elsewhere).await?;
        assert_eq!((output.status.code(), &cloud["state"]), (Some(1), &json!("not_tried")), "{cloud}");
        let mut set = none.clone();
        set.config_map.extend(injected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        works("a token of the ServiceAccount", &set, &[]).await?;
        // A role that EKS sets overrules that of the settings, and may be of another account.
        let overruled = [("AWS_ROLE_ARN", "arn:aws:iam::444455556666:role/other"), injected[1]];
        let (output, cloud) = check(aws.dir.path(), &set, &overruled).await?;
        assert_eq!((output.status.code(), &cloud["state"]), (Some(1), &json!("not_tried")), "{cloud}");
        let asked = aws.relay.seen().into_iter().find(|seen| seen.body.contains("AssumeRoleWithWebIdentity"));
        ensure!(asked.is_some_and(|seen| seen.body.contains("a.projected.token")), "another token was sent");
        aws.moto.rights(true).await?;

        // The answer of a credentials agent has these fields, and so has that of the metadata service.
        let credentials = json!({
            "AccessKeyId": aws.key.0,
            "SecretAccessKey": aws.key.1,
            "Token": "",
            "Expiration": jiff::Timestamp::now() + jiff::SignedDuration::from_hours(1),
        });
        let answer = |body: String| Does::Answer { status: 200, headers: Vec::new(), body };
        aws.relay.rule(|seen| seen.path == "/v1/credentials", answer(credentials.to_string()));
        let agent = format!("http://{}/v1/credentials", aws.relay.address());
        let injected = [
            ("AWS_CONTAINER_CREDENTIALS_FULL_URI", &*agent),
            ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", &*token),
        ];
        works("EKS pod identity", &none, &injected).await?;

        let role = "/latest/meta-data/iam/security-credentials/";
        aws.relay
            .rule(|seen| seen.method == "PUT" && seen.path == "/latest/api/token", answer("t".to_owned()));
        aws.relay.rule(move |seen| seen.path == role, answer("a-role".to_owned()));
        aws.relay.rule(move |seen| seen.path == format!("{role}a-role"), answer(credentials.to_string()));
        let document = json!({ "region": REGION }).to_string();
        aws.relay.rule(|seen| seen.path == "/latest/dynamic/instance-identity/document", answer(document));
        let metadata = format!("http://{}", aws.relay.address());
        let mut nowhere = none.clone();
        nowhere.config_map.remove("AWS_REGION");
        let of_node = [("AWS_EC2_METADATA_SERVICE_ENDPOINT", &*metadata)];
        works("the node's role", &nowhere, &of_node).await
    })
}
