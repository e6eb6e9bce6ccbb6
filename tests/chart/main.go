// Decodes manifests strictly, those of the chart and of deploy/kubernetes, against the types of the Kubernetes API, the Prometheus operator and cert-manager:
//
//	helm template fermata helm/fermata --values FILE | (cd tests/chart && go run .)
//
// A document fails if its kind is unknown, if it has a field that its type does not have or has one twice, or if it has no name
// or no namespace. The values of fields are not checked.
package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"

	certmanager "github.com/cert-manager/cert-manager/pkg/apis/certmanager/v1"
	monitoring "github.com/prometheus-operator/prometheus-operator/pkg/apis/monitoring/v1"
	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	policy "k8s.io/api/policy/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// The kinds that there may be, by API version and kind.
var kinds = map[string]func() meta.Object{
	"apps/v1 Deployment":                      func() meta.Object { return new(apps.Deployment) },
	"apps/v1 StatefulSet":                     func() meta.Object { return new(apps.StatefulSet) },
	"autoscaling/v2 HorizontalPodAutoscaler":  func() meta.Object { return new(autoscaling.HorizontalPodAutoscaler) },
	"batch/v1 CronJob":                        func() meta.Object { return new(batch.CronJob) },
	"batch/v1 Job":                            func() meta.Object { return new(batch.Job) },
	"cert-manager.io/v1 Certificate":          func() meta.Object { return new(certmanager.Certificate) },
	"monitoring.coreos.com/v1 PodMonitor":     func() meta.Object { return new(monitoring.PodMonitor) },
	"monitoring.coreos.com/v1 PrometheusRule": func() meta.Object { return new(monitoring.PrometheusRule) },
	"networking.k8s.io/v1 NetworkPolicy":      func() meta.Object { return new(networking.NetworkPolicy) },
	"policy/v1 PodDisruptionBudget":           func() meta.Object { return new(policy.PodDisruptionBudget) },
	"v1 ConfigMap":                            func() meta.Object { return new(core.ConfigMap) },
	"v1 Pod":                                  func() meta.Object { return new(core.Pod) },
	"v1 Secret":                               func() meta.Object { return new(core.Secret) },
	"v1 Service":                              func() meta.Object { return new(core.Service) },
	"v1 ServiceAccount":                       func() meta.Object { return new(core.ServiceAccount) },
}

// A line of three dashes ends a document.
var separator = regexp.MustCompile(`(?m)^---[ \t]*$`)

// decode returns the kind and the name of a document, or "" for one without content.
func decode(document []byte) (string, error) {
	// Refuses a key that occurs twice.
	text, err := yaml.YAMLToJSONStrict(document)
	if err != nil {
		return "", err
	}
	if bytes.Equal(text, []byte("null")) {
		return "", nil
	}
	var of meta.TypeMeta
	if err := json.UnmarshalCaseSensitivePreserveInts(text, &of); err != nil {
		return "", err
	}
	kind := of.APIVersion + " " + of.Kind
	make, known := kinds[kind]
	if !known {
		return kind, errors.New("unknown kind")
	}
	object := make()
	faults, err := json.UnmarshalStrict(text, object)
	if err != nil {
		return kind, err
	}
	if object.GetName() == "" {
		faults = append(faults, errors.New("metadata.name is missing"))
	}
	if object.GetNamespace() == "" {
		faults = append(faults, errors.New("metadata.namespace is missing"))
	}
	return kind + " " + object.GetName(), errors.Join(faults...)
}

// run decodes all documents of a stream, and counts the objects and the faults.
func run(stream []byte, out io.Writer) (objects, faults int) {
	seen := map[string]bool{}
	for _, document := range separator.Split(string(stream), -1) {
		what, err := decode([]byte(document))
		switch {
		case err != nil:
			faults++
			fmt.Fprintf(out, "%s: %v\nin:\n%s\n", what, err, document)
		case what == "":
		case seen[what]:
			faults++
			fmt.Fprintf(out, "%s: there are two\n", what)
		default:
			seen[what] = true
			objects++
		}
	}
	return objects, faults
}

func main() {
	stream, err := io.ReadAll(os.Stdin)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	objects, faults := run(stream, os.Stderr)
	if faults > 0 || objects == 0 {
		fmt.Fprintf(os.Stderr, "%d objects, %d faults\n", objects, faults)
		os.Exit(1)
	}
	fmt.Printf("%d objects decoded\n", objects)
}
