use std::path::Path;

use super::endpoint::socket_in;
use super::*;

fn parse(text: &str) -> ConnectUri {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

#[test]
fn the_driver_is_the_uri_without_transport_and_parameters() {
    for (uri, driver) in [
        ("qemu:///system", Some("qemu:///system")),
        ("qemu+unix:///system", Some("qemu:///system")),
        ("test:///default", Some("test:///default")),
        ("test+unix:///default?socket=/tmp/s", Some("test:///default")),
        ("qemu+unix:///system?mode=legacy&socket=/tmp/s&no_verify=1", Some("qemu:///system")),
        ("test+unix:///default?name=qemu%3A%2F%2F%2Fsession&socket=/tmp/s", Some("qemu:///session")),
        ("remote+unix:///", None),
        ("  xen:///system\n", Some("xen:///system")),
    ] {
        assert_eq!(parse(uri).driver(), driver, "{uri}");
    }
}

#[test]
fn the_address_has_all_that_selects_a_daemon_and_neither_keys_nor_other_users() {
    for (uri, address) in [
        ("qemu:///system", "qemu+unix:///system"),
        ("qemu+unix:///system?mode=direct", "qemu+unix:///system?mode=direct"),
        ("qemu+unix:///system?mode=auto", "qemu+unix:///system"),
        ("qemu+unix:///system?socket=/a", "qemu+unix:///system?socket=/a"),
        ("qemu:///system?socket=/a%26b%20c", "qemu+unix:///system?socket=/a%26b%20c"),
        ("qemu+ssh://root@kvm/system?keyfile=/k&no_verify=1", "qemu+ssh://kvm:22/system"),
        ("qemu+libssh2://kvm/system?mode=legacy", "qemu+ssh://kvm:22/system?mode=legacy"),
        ("qemu+ssh://a@kvm/system?netcat=nc", "qemu+ssh://kvm:22/system"),
        (
            "qemu+ssh://a@kvm/system?netcat=/opt/my%20nc&name=test:///a",
            "qemu+ssh://kvm:22/system?netcat=/opt/my%20nc&name=test:///a",
        ),
        (
            "qemu+ssh://a@kvm/system?proxy=auto&netcat=/opt/nc",
            "qemu+ssh://kvm:22/system?netcat=/opt/nc&proxy=auto",
        ),
        ("qemu+ssh://alice@kvm/session", "qemu+ssh://alice@kvm:22/session"),
        ("qemu+ssh://alice@kvm/session?socket=/a", "qemu+ssh://kvm:22/session?socket=/a"),
        ("qemu+ssh://kvm:23/system", "qemu+ssh://kvm:23/system"),
        ("qemu+ssh://root@kvm/system?socket=/b&keyfile=/k", "qemu+ssh://kvm:22/system?socket=/b"),
        ("qemu://kvm/system?pkipath=/p", "qemu+tls://kvm:16514/system"),
        ("qemu+tcp://u@[fe80::1]/session", "qemu+tcp://[fe80::1]:16509/session"),
        ("qemu+tcp://kvm/x?name=qemu:///system", "qemu+tcp://kvm:16509/x?name=qemu:///system"),
        ("qemu+ssh://kvm/x?name=test:///a%3f&socket=/c", "qemu+ssh://kvm:22/x?socket=/c&name=test:///a%3F"),
        ("remote+tcp://kvm/", "remote+tcp://kvm:16509/"),
        ("qemu+tcp:///system", "qemu+tcp://localhost:16509/system"),
    ] {
        assert_eq!(parse(uri).address(), address, "{uri}");
        // It is a URI itself, of the same place.
        assert_eq!(parse(address).address(), address, "{uri}");
        assert_eq!(parse(address).driver(), parse(uri).driver(), "{uri}");
    }
}

#[test]
fn another_host_is_reached_with_the_same_user_and_keys() {
    let today = parse("qemu+ssh://virt@new/system?keyfile=/k&known_hosts=/h&no_verify=1&socket=/new");
    let before = parse("qemu+ssh://old:23/system?socket=/old").reached_as(&today);
    let expected = parse("qemu+ssh://virt@old:23/system?keyfile=/k&known_hosts=/h&no_verify=1&socket=/old");
    assert_eq!(before.endpoint(), expected.endpoint());
    let session = parse("qemu+ssh://alice@old/session").reached_as(&today);
    assert_eq!(
        session.endpoint(),
        parse("qemu+ssh://alice@old/session?keyfile=/k&known_hosts=/h&no_verify=1").endpoint()
    );
    let own = parse("qemu+ssh://old/session").reached_as(&today);
    let expected = parse("qemu+ssh://old/session?keyfile=/k&known_hosts=/h&no_verify=1");
    assert_eq!(own.endpoint(), expected.endpoint(), "the session is that of who runs this process");
    let today = parse("qemu://new/system?pkipath=/p&no_verify=1");
    let before = parse("qemu://old/system").reached_as(&today);
    assert_eq!(before.endpoint(), parse("qemu://old/system?pkipath=/p&no_verify=1").endpoint());
    // The needs of one transport do not affect another.
    for other in ["qemu+tcp://old/system", "qemu+ssh://old/system", "qemu:///system?socket=/a"] {
        assert_eq!(parse(other).reached_as(&today), parse(other));
    }
}

#[test]
fn a_socket_is_named_by_the_uri() {
    assert_eq!(parse("qemu:///system?socket=/tmp/a%20b").socket().unwrap(), Path::new("/tmp/a b"));
    assert_eq!(parse("qemu:///system?socket=/a;SOCKET=/b").socket().unwrap(), Path::new("/b"));
}

#[test]
fn without_a_parameter_the_socket_is_that_of_the_daemon() {
    assert!(parse("qemu:///system?mode=direct").socket().unwrap().ends_with("libvirt/virtqemud-sock"));
    assert!(parse("lxc:///system?mode=direct").socket().unwrap().ends_with("libvirt/virtlxcd-sock"));
    assert!(parse("qemu:///system?mode=legacy").socket().unwrap().ends_with("libvirt/libvirt-sock"));
    assert!(parse("test:///default").socket().unwrap().ends_with("libvirt/libvirt-sock"));
}

#[test]
fn automatic_mode_takes_the_drivers_own_daemon_if_it_is_there() {
    let folder = tempfile::tempdir().unwrap();
    let socket = |mode| socket_in(folder.path(), Some("virtqemud"), mode);
    let (direct, legacy) = (folder.path().join("virtqemud-sock"), folder.path().join("libvirt-sock"));
    assert_eq!(socket(Mode::Auto), legacy);
    std::fs::write(&direct, "").unwrap();
    assert_eq!(socket(Mode::Auto), direct);
    assert_eq!(socket(Mode::Legacy), legacy);
}

#[test]
fn tcp_has_a_host_and_a_port() {
    for (uri, server) in [
        ("qemu+tcp://h/system", "h:16509"),
        ("qemu+tcp://h:1/system", "h:1"),
        ("qemu+tcp://someone@192.168.122.1:/system", "192.168.122.1:16509"),
        ("qemu+tcp://[fe80::1]:5000/system", "[fe80::1]:5000"),
        ("qemu+tcp:///system", "localhost:16509"),
    ] {
        assert_eq!(parse(uri).endpoint().to_string(), format!("libvirt at {server} (tcp)"), "{uri}");
        assert_eq!(parse(uri).driver(), Some("qemu:///system"), "{uri}");
        assert_eq!(parse(uri).socket(), None, "{uri}");
    }
    for port in ["0", "65536", "x", "-1"] {
        let uri = format!("qemu+tcp://h:{port}/system");
        assert_eq!(uri.parse::<ConnectUri>(), Err(UriError::Port), "{uri}");
    }
    for authority in ["@h", "[::1", "[::1]1", "h i", "h,i", "%2@h"] {
        let uri = format!("qemu+tcp://{authority}/system");
        assert_eq!(uri.parse::<ConnectUri>(), Err(UriError::Shape), "{uri}");
    }
}

#[test]
fn a_host_without_a_transport_means_tls() {
    for (uri, server, pki, verify) in [
        ("qemu://h/system", "h:16514", None, true),
        ("qemu+tls:///system?no_verify=0", "localhost:16514", None, true),
        ("qemu://h:1/system?no_verify=1&pkipath=/a%20b", "h:1", Some("/a b"), false),
    ] {
        let uri = parse(uri);
        let Endpoint::Tls(tls) = uri.endpoint() else { panic!("{uri}") };
        assert_eq!(tls.server.to_string(), server, "{uri}");
        assert_eq!((tls.pki.as_deref(), tls.verify), (pki.map(Path::new), verify), "{uri}");
    }
    for (query, parameter) in
        [("no_verify=x", "no_verify"), ("pkipath=here", "pkipath"), ("tls_priority=NORMAL", "tls_priority")]
    {
        let error = format!("qemu://h/system?{query}").parse::<ConnectUri>().unwrap_err();
        assert!(matches!(error, UriError::Value { parameter: got, .. } if got == parameter), "{error}");
    }
    parse("qemu:///system?tls_priority=NORMAL");
}

#[test]
fn another_transport_is_refused_by_name() {
    let error = "qemu+ext:///system?command=x".parse::<ConnectUri>().unwrap_err();
    assert_eq!(error, UriError::Transport("ext".to_owned()));
    assert_eq!("qemu+unix://host/system".parse::<ConnectUri>(), Err(UriError::UnixWithHost));
}

#[test]
fn a_password_reaches_no_text() {
    for transport in ["", "+ssh", "+tcp", "+tls", "+unix"] {
        let error = format!("qemu{transport}://me:secret@h/system").parse::<ConnectUri>().unwrap_err();
        assert_eq!(error, UriError::Password);
        assert!(!format!("{error} {error:?}").contains("secret"), "{error:?}");
    }
}

#[test]
fn an_unknown_parameter_is_named() {
    let error = "qemu:///system?sokcet=/tmp/s".parse::<ConnectUri>().unwrap_err();
    assert_eq!(error, UriError::UnknownParameter("sokcet".to_owned()));
    assert!(error.to_string().contains("\"sokcet\""), "{error}");
}

#[test]
fn parameters_that_only_libvirts_own_client_needs_change_nothing() {
    let query = "no_sanity=1&auth=sasl.gssapi&authfile=/etc/libvirt/auth.conf";
    for uri in ["qemu+ssh://root@h/system", "qemu://h/system", "qemu:///system", "qemu+tcp://h/system"] {
        let with = parse(&format!("{uri}?{query}"));
        assert_eq!((with.endpoint(), with.driver()), (parse(uri).endpoint(), parse(uri).driver()), "{uri}");
    }
}

#[test]
fn nonsense_is_refused() {
    for uri in ["", "qemu", "qemu:/system", ":///", "qemu+:///", "+unix:///", "qemu:///system#x", "q emu:///"]
    {
        assert_eq!(uri.parse::<ConnectUri>(), Err(UriError::Shape), "{uri}");
    }
    for (uri, parameter) in [
        ("qemu:///system?socket=relative", "socket"),
        ("qemu:///system?socket", "socket"),
        ("qemu:///system?socket=/a%2", "socket"),
        ("qemu:///system?socket=/a%zz", "socket"),
        ("qemu:///system?mode=fast", "mode"),
        ("qemu:///system?no_sanity=yes", "no_sanity"),
        ("qemu:///system?name=", "name"),
    ] {
        let error = uri.parse::<ConnectUri>().unwrap_err();
        assert!(
            matches!(error, UriError::Value { parameter: got, .. } if got == parameter),
            "{uri}: {error:?}"
        );
    }
    assert_eq!(
        "test:///default?mode=direct".parse::<ConnectUri>(),
        Err(UriError::NoDaemon("test".to_owned()))
    );
}

#[test]
fn a_uri_is_displayed_as_it_was_written() {
    let text = "qemu+unix:///system?socket=/run/x";
    assert_eq!(parse(text).to_string(), text);
}

proptest::proptest! {
    #[test]
    fn no_text_panics(text in "(qemu|test)?(\\+(unix|tcp|tls|ssh))?(://)?(u@)?.{0,40}") {
        let _ = text.parse::<ConnectUri>();
    }
}

fn ssh(uri: &str) -> Ssh {
    let uri = parse(uri);
    let Endpoint::Ssh(ssh) = uri.endpoint() else { panic!("{uri}") };
    ssh.clone()
}

#[test]
fn an_ssh_uri_sets_user_host_trust_and_sockets() {
    let ssh_uri = ssh("qemu+ssh://root@192.168.122.1/system?no_verify=1");
    assert_eq!(ssh_uri.user.as_deref(), Some("root"));
    assert_eq!(ssh_uri.server.to_string(), "192.168.122.1:22");
    assert_eq!(ssh_uri.trust, Trust::New);
    assert_eq!(ssh_uri.sockets, ["/var/run/libvirt/virtqemud-sock", "/var/run/libvirt/libvirt-sock"]);
    assert!(ssh_uri.forward);
    assert_eq!(ssh_uri.native.as_deref(), Some("qemu:///system"));
    assert_eq!(ssh_uri.netcat.as_deref(), Some("nc"));
    assert_eq!(parse("qemu+ssh://h/system").driver(), Some("qemu:///system"));
    for (query, trust) in [
        ("", Trust::Known),
        ("no_verify=0", Trust::Known),
        ("known_hosts_verify=auto", Trust::New),
        ("known_hosts_verify=normal&no_verify=1", Trust::Known),
        ("known_hosts_verify=ignore&no_tty=1&sshauth=agent,privkey", Trust::Anybody),
    ] {
        assert_eq!(ssh(&format!("qemu+libssh://h:222/system?{query}")).trust, trust, "{query}");
    }
}

/// Columns: whether sshd forwards, whether virt-ssh-helper may be started, the netcat, the sockets.
#[test]
fn ssh_reaches_the_socket_as_the_parameters_say() {
    let all = &["/var/run/libvirt/virtqemud-sock", "/var/run/libvirt/libvirt-sock"][..];
    for (path, forward, native, netcat, sockets) in [
        ("system?proxy=auto", true, true, Some("nc"), all),
        ("system?proxy=native", false, true, None, all),
        ("system?proxy=netcat", false, false, Some("nc"), all),
        ("system?netcat=/opt/nc", false, false, Some("/opt/nc"), all),
        ("system?socket=/s", true, false, Some("nc"), &["/s"]),
        ("system?mode=legacy", true, false, Some("nc"), &all[1..]),
        ("system?mode=direct", true, false, Some("nc"), &all[..1]),
        ("session", true, true, None, &[]),
        ("session?socket=/s", true, false, Some("nc"), &["/s"]),
    ] {
        let ssh = ssh(&format!("qemu+ssh://h/{path}"));
        assert_eq!((ssh.forward, ssh.native.is_some()), (forward, native), "{path}");
        assert_eq!(
            (ssh.netcat.as_deref(), &ssh.sockets[..]),
            (netcat, &sockets.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()[..]),
            "{path}"
        );
    }
    for (path, parameter) in [
        ("system?proxy=native&netcat=nc", "netcat"),
        ("system?proxy=native&socket=/s", "proxy"),
        ("system?proxy=fast", "proxy"),
        ("session?proxy=netcat", "socket"),
        ("system?keyfile=id_rsa", "keyfile"),
        ("system?known_hosts_verify=1", "known_hosts_verify"),
        ("system?sshauth=password", "sshauth"),
        ("system?command=/opt/ssh", "command"),
        ("system?no_tty=x", "no_tty"),
    ] {
        let error = format!("qemu+ssh://h/{path}").parse::<ConnectUri>().unwrap_err();
        assert!(
            matches!(error, UriError::Value { parameter: got, .. } if got == parameter),
            "{path}: {error}"
        );
    }
    // It belongs to another transport there.
    ssh("qemu+libssh2://h/system?command=/opt/ssh");
}
