# Gives the module's objects, and only those, the flags that nginx's own C files must not see.

for ngx_src in $ngx_addon_dir/src/*/*.c $ngx_addon_dir/src/*/*.cc; do
    ngx_obj=`basename \`dirname $ngx_src\``/`basename $ngx_src | sed 's/\.[a-z]*$//'`.o

    case $ngx_src in
        *.cc) ngx_flags='-std=c++17 -fno-exceptions -fno-rtti -fno-threadsafe-statics -fvisibility=hidden' ;;
        *)    ngx_flags='-fvisibility=hidden' ;;
    esac

    echo "$NGX_OBJS/addon/$ngx_obj: CFLAGS += $ngx_flags" >> $NGX_MAKEFILE
done

cat << END >> $NGX_MAKEFILE

$NGX_OBJS/rate_limit/store/script_text.h: $ngx_addon_dir/scripts/embed $ngx_addon_dir/scripts/join-lua $ngx_addon_dir/scripts/literals.awk `echo $ngx_addon_dir/lua/*`
	$ngx_addon_dir/scripts/embed \$@

$NGX_OBJS/addon/nginx/dashboard.o: $NGX_OBJS/rate_limit/nginx/dashboard_text.h

$NGX_OBJS/rate_limit/nginx/dashboard_text.h: $ngx_addon_dir/scripts/embed-page $ngx_addon_dir/scripts/literals.awk `echo $ngx_addon_dir/src/nginx/dashboard/*`
	$ngx_addon_dir/scripts/embed-page \$@
END
