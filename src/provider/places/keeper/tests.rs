use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use operator_kit::testing::ApiServer;
use secrecy::SecretString;

use super::*;
use crate::{
    provider::{CATALOGUE, ErrorClass},
    settings::Raw,
};

#[tokio::test(start_paused = true)]
async fn a_doubted_host_that_does_not_answer_is_asked_again_after_a_pause() {
    let given = [("CLOUD_PROVIDER", "docker"), ("DOCKER_HOST", "tcp://10.0.0.1:2375")];
    let settings = given.map(|(name, value)| (name.to_owned(), SecretString::from(value))).into();
    let snapshot = Snapshot::parse(&Raw { settings, ..Raw::default() }, CATALOGUE).unwrap();
    let endpoint = snapshot.endpoint().unwrap().clone();
    let records = Records::default();
    let records = records.naming("docker", &endpoint, Some(&Host::Unnamed), Timestamp::now()).unwrap();
    let data = records.changed_since(&Records::default()).unwrap();
    let data = data.into_iter().map(|(key, text)| (key.to_owned(), text)).collect();
    let object = ConfigMap { data: Some(data), ..ConfigMap::default() };

    let asked = Arc::new(AtomicU32::new(0));
    let count = Arc::clone(&asked);
    let open = move |_: &Snapshot| -> Result<Arc<dyn Provider>, Error> {
        count.fetch_add(1, Relaxed);
        Err(Error::new(ErrorClass::Transient, "it does not answer"))
    };
    let state = State { current: Some(Arc::new(snapshot)), generation: 1, ..State::default() };
    let (_sender, mut state) = watch::channel(state);
    let server = ApiServer::expecting([]);
    let keeper = Keeper::new(KeeperContext {
        client: server.client(),
        namespace: "operator".to_owned(),
        open: Box::new(open),
        settings: CloudSettings::any(state.clone()),
        leadership: Leadership::unlimited(),
        answer: watch::channel(None).0,
        host_changed: Arc::default(),
    });

    let due = Duration::from_secs(7);
    let doubt = Some(Instant::now() + due);
    let mut term = TermState { object: Some(object), doubt, ..TermState::default() };
    assert_eq!(keeper.step(&mut term, &mut state).await, due);
    assert_eq!(asked.load(Relaxed), 0);
    sleep(due).await;
    for times in 1..5 {
        let pause = keeper.step(&mut term, &mut state).await;
        assert!(pause >= Duration::from_millis(500), "{pause:?}");
        assert_eq!(asked.load(Relaxed), times);
    }
}
