# Adds compiler flags to the module's objects only, and rules for its generated headers, to nginx's Makefile.

for ngx_src in $ngx_addon_dir/src/*/*.c $ngx_addon_dir/src/*/*.cc; do
    ngx_obj=`basename \`dirname $ngx_src\``/`basename $ngx_src | sed 's/\.[a-z]*$//'`.o

    case $ngx_src in
        *.cc) ngx_flags='-std=c++17 -fno-exceptions -fno-rtti -fno-threadsafe-statics -fvisibility=hidden' ;;
        *)    ngx_flags='-fvisibility=hidden' ;;
    esac

    echo "$NGX_OBJS/addon/$ngx_obj: CFLAGS += $ngx_flags" >> $NGX_MAKEFILE
done

cat << END >> $NGX_MAKEFILE

$NGX_OBJS/rate_limit/protocol/script_text.h: $ngx_addon_dir/scripts/embed $ngx_addon_dir/src/core/constants.h $ngx_addon_dir/src/core/algorithm_table.h \\
    `echo $ngx_addon_dir/lua/*`
	$ngx_addon_dir/scripts/embed lua \$@

$NGX_OBJS/addon/module/lifecycle.o $NGX_OBJS/addon/api/zones.o $NGX_OBJS/addon/endpoints/metrics.o: \\
    $NGX_OBJS/rate_limit/core/version_text.h

$NGX_OBJS/rate_limit/core/version_text.h: $ngx_addon_dir/scripts/embed $ngx_addon_dir/VERSION
	$ngx_addon_dir/scripts/embed version \$@

$NGX_OBJS/addon/endpoints/dashboard.o: $NGX_OBJS/rate_limit/endpoints/dashboard_text.h

$NGX_OBJS/rate_limit/endpoints/dashboard_text.h: $ngx_addon_dir/scripts/embed `echo $ngx_addon_dir/src/endpoints/dashboard/*`
	$ngx_addon_dir/scripts/embed page \$@
END
