//! The program of a Pod's only container, according to the Pod's specification.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    process::Command,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use k8s_openapi::{
    api::{
        authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec},
        core::v1::{Container, EnvVar, Pod, ServiceAccount},
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{
    Api, Client, ResourceExt as _,
    api::PostParams,
    config::{AuthInfo, Kubeconfig},
};

use crate::http;

/// A Pod's only container.
pub(super) fn of(pod: &Pod) -> Result<&Container> {
    let spec = pod.spec.as_ref().context("a Pod without a spec")?;
    match &*spec.containers {
        [container] if spec.init_containers.is_none() => Ok(container),
        _ => bail!("only Pods with one container are run here"),
    }
}

/// Its command line: arguments, environment, and the `ServiceAccount`'s token. If the container would listen at every address of its
/// own network, the program listens at the Pod's address.
pub(super) async fn command(
    client: &Client,
    pod: &Pod,
    address: Ipv4Addr,
    program: &Path,
    dir: &Path,
    admin: &Kubeconfig,
) -> Result<Command> {
    let container = of(pod)?;
    ensure!(container.command.is_none(), "only the image's own program is run here");
    let mut command = Command::new(program);
    let arguments = container.args.iter().flatten();
    command.args(arguments.map(|argument| argument.replace("=:", &format!("={address}:"))));
    for variable in container.env.iter().flatten() {
        if let Some(value) = value(pod, variable)? {
            command.env(&variable.name, value);
        }
    }
    let kubeconfig = dir.join("kubeconfig");
    let text = serde_yaml::to_string(&with_token(admin, token(client, pod).await?)?)?;
    std::fs::write(&kubeconfig, text).with_context(|| format!("writing {}", kubeconfig.display()))?;
    command.env("KUBECONFIG", kubeconfig);
    Ok(command)
}

/// The value of a variable, if it has one.
fn value(pod: &Pod, variable: &EnvVar) -> Result<Option<String>> {
    let Some(source) = &variable.value_from else { return Ok(variable.value.clone()) };
    let field = source.field_ref.as_ref();
    let field = field.with_context(|| format!("{}: its source is not known here", variable.name))?;
    match &*field.field_path {
        "metadata.name" => Ok(Some(pod.name_any())),
        "metadata.namespace" => Ok(pod.namespace()),
        path => bail!("{}: the field {path} is not known here", variable.name),
    }
}

/// A token that is valid as long as the Pod exists.
async fn token(client: &Client, pod: &Pod) -> Result<String> {
    let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.as_deref());
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), &pod.namespace().unwrap_or_default());
    let request = TokenRequest {
        spec: TokenRequestSpec {
            bound_object_ref: Some(BoundObjectReference {
                api_version: Some("v1".to_owned()),
                kind: Some("Pod".to_owned()),
                name: pod.metadata.name.clone(),
                uid: pod.metadata.uid.clone(),
            }),
            ..TokenRequestSpec::default()
        },
        ..TokenRequest::default()
    };
    let account = account.unwrap_or("default");
    let answer = accounts.create_token_request(account, &PostParams::default(), &request).await?;
    Ok(answer.status.context("a token request without an answer")?.token)
}

fn with_token(admin: &Kubeconfig, token: String) -> Result<Kubeconfig> {
    let mut kubeconfig = admin.clone();
    let user = kubeconfig.auth_infos.first_mut().context("a kubeconfig without a user")?;
    user.auth_info = Some(AuthInfo { token: Some(token.into()), ..AuthInfo::default() });
    Ok(kubeconfig)
}

/// Whether the container's readiness probe succeeds.
pub(super) async fn is_ready(container: &Container, address: Ipv4Addr) -> Result<bool> {
    let Some(probe) = container.readiness_probe.as_ref().and_then(|probe| probe.http_get.as_ref()) else {
        return Ok(true);
    };
    let port = match &probe.port {
        IntOrString::Int(port) => Some(*port),
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            ports.find(|port| port.name.as_ref() == Some(name)).map(|port| port.container_port)
        }
    };
    let port =
        port.and_then(|port| u16::try_from(port).ok()).context("a probe of a port that is not there")?;
    let path = probe.path.as_deref().unwrap_or("/");
    let answer = http::get(SocketAddr::from((address, port)), path).await;
    Ok(answer.is_ok_and(|(status, _)| (200..400).contains(&status)))
}

/// How long the container waits after its Pod's deletion, before it gets SIGTERM.
pub(super) fn pause_before_stop(container: &Container) -> Duration {
    let hook = container.lifecycle.as_ref().and_then(|lifecycle| lifecycle.pre_stop.as_ref());
    let seconds = hook.and_then(|hook| hook.sleep.as_ref()).map_or(0, |sleep| sleep.seconds);
    Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
}
